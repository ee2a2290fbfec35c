// cell keeps a value in a peer's memory that is always whole to its readers, who read it from afar while a writer
// changes it from afar.
//
// A cell is a version and two places for a value. The writer writes the place that the version does not name, and
// then the version, by an atomic write. A reader reads the version, the places, and the version again.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rpma"
)

var example = roles.Example{Serve: serve, Dial: dial}

func main() { roles.Main(example) }

const (
	room     = 248          // of a value, whose length is the byte before it
	place    = 1 + room + 7 // and what makes that a multiple of 8
	cellSize = 8 + 2*place  // version and places
	updates  = 1000
)

func serve(ctx context.Context, out io.Writer, addr string, ready func(string)) (err error) {
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	mr, err := peer.Alloc(cellSize, rpma.ReadSrc|rpma.WriteDst|rpma.FlushVisibility)
	if err != nil {
		return err
	}
	defer mr.Close()
	descriptor, err := mr.MarshalBinary()
	if err != nil {
		return err
	}
	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	ready(ep.Addr().String())
	var conns [2]*rpma.Conn // the writer and the reader
	for i := range conns {
		req, err := ep.Accept(ctx, nil)
		if err != nil {
			return err
		}
		conn, err := req.Connect(ctx, descriptor)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:gocritic // two of them
		conns[i] = conn
	}
	for _, c := range conns {
		if err := roles.Ended(ctx, c); err != nil {
			return err
		}
	}
	version := binary.LittleEndian.Uint64(mr.Bytes())
	fmt.Fprintf(out, "version %d is %.20q...\n", version, value(mr.Bytes(), version))
	return nil
}

func value(cell []byte, version uint64) []byte {
	p := cell[8+version%2*place:][:place]
	return p[1:][:min(int(p[0]), room)]
}

// client is one end of a connection to a cell.
type client struct {
	conn *rpma.Conn
	cell rpma.RemoteMR
	mr   *rpma.MR // a copy of the cell, and of the version once more
}

func connect(ctx context.Context, peer *rpma.Peer, addr string) (*client, error) {
	conn, err := peer.Dial(ctx, addr, nil)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn}
	if c.cell, err = rpma.ParseRemoteMR(conn.PrivateData()); err == nil && c.cell.Size() < cellSize {
		err = errors.New("the peer's memory is too small for a cell")
	}
	if err == nil {
		c.mr, err = peer.Alloc(cellSize+8, rpma.ReadDst|rpma.WriteSrc)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *client) close() error { return errors.Join(c.conn.Close(), c.mr.Close()) }

// put writes a value. There is one writer.
func (c *client) put(ctx context.Context, version uint64, v []byte) error {
	if len(v) > room {
		return errors.New("the value is too long")
	}
	off := 8 + int(version%2)*place
	p := c.mr.Bytes()[off:][:place]
	p[0] = byte(len(v))
	copy(p[1:], v)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], version)
	return c.conn.Do(ctx,
		rpma.Write(c.cell.Slice(uint64(off), place), c.mr.Slice(off, place)),
		rpma.Flush(c.cell.Slice(uint64(off), place), rpma.Visibility),
		rpma.AtomicWrite(c.cell.Slice(0, 8), b),
	)
}

// get reads a value and its version. The three reads are done in their order, so while the version is the same, the place that it names was not
// being written: that is done for the next version but one, after the next one was published.
func (c *client) get(ctx context.Context) (version uint64, v []byte, err error) {
	b := c.mr.Bytes()
	for {
		if err := c.conn.Do(ctx,
			rpma.Read(c.mr.Slice(0, 8), c.cell.Slice(0, 8)),
			rpma.Read(c.mr.Slice(8, 2*place), c.cell.Slice(8, 2*place)),
			rpma.Read(c.mr.Slice(cellSize, 8), c.cell.Slice(0, 8)),
		); err != nil {
			return 0, nil, err
		}
		if version = binary.LittleEndian.Uint64(b); version == binary.LittleEndian.Uint64(b[cellSize:]) {
			return version, bytes.Clone(value(b, version)), nil
		}
	}
}

// text is a value of which each byte tells whether it belongs to the others.
func text(version uint64) []byte { return bytes.Repeat(fmt.Appendf(nil, "%d,", version), room/8) }

func dial(ctx context.Context, out io.Writer, addr string) (err error) {
	peer, err := roles.RemotePeer(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	writer, err := connect(ctx, peer, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, writer.close()) }()
	reader, err := connect(ctx, peer, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reader.close()) }()

	written := make(chan error, 1)
	go func() {
		for version := uint64(1); version <= updates; version++ {
			v := text(version)
			if err := writer.put(ctx, version, v[:min(len(v), room)]); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	var last uint64
	reads := 0
	for last < updates {
		version, v, err := reader.get(ctx)
		if err != nil {
			return errors.Join(err, conclude(written))
		}
		if want := text(version); version > 0 && !bytes.Equal(v, want[:min(len(want), room)]) {
			return fmt.Errorf("version %d is %q", version, v)
		}
		if version < last {
			return fmt.Errorf("version %d after %d", version, last)
		}
		last = version
		reads++
	}
	fmt.Fprintf(out, "wrote %d versions, read whole values only\n", updates)
	return <-written
}

// conclude is the writer's error, if it has one already.
func conclude(written <-chan error) error {
	select {
	case err := <-written:
		return err
	default:
		return nil
	}
}
