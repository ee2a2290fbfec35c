// log appends records to a log in a file of the peer's, and knows of each that it is persistent before it goes on. The peer's
// program does nothing but offer the memory.
//
// The log is bytes 64 and following of the file; the 8 bytes at 8 say how many of them are valid. A record is written and made
// persistent behind the valid ones before they are made more, by an atomic write. So what they say is always whole, wherever a
// power failure comes between.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rpma"
	"github.com/go-rdma/rdma/rpma/pmem"
)

var (
	file    = flag.String("file", "", "the log, best on persistent memory; a file in the temporary directory if empty")
	records = flag.Int("n", 10, "records to append")
)

func main() {
	roles.Usage()
	roles.Main(newExample(*file, *records))
}

func newExample(file string, records int) roles.Example {
	return roles.Example{
		Serve: func(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
			return serve(ctx, out, addr, ready, file)
		},
		Dial: func(ctx context.Context, out io.Writer, addr string) error { return dial(ctx, out, addr, records) },
	}
}

const (
	size  = 1 << 20
	valid = 8  // where the number of valid bytes is
	start = 64 // of the records
)

var magic = []byte("rpmalog1")

// open maps the log, and makes it if it is not one yet.
func open(name string) (m *pmem.Mapping, err error) {
	if name == "" {
		name = filepath.Join(os.TempDir(), "rpma-example.log")
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping does not need it
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if m, err = pmem.Map(f, 0, size); err != nil {
		return nil, err
	}
	b := m.Bytes()
	switch {
	case string(b[:8]) == string(magic):
	case binary.LittleEndian.Uint64(b) != 0:
		err = fmt.Errorf("%s is something else", name)
	default:
		copy(b, magic)
		err = m.Persist(0, start)
	}
	if err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

func serve(ctx context.Context, out io.Writer, addr string, ready func(string), file string) (err error) {
	m, err := open(file)
	if err != nil {
		return err
	}
	defer m.Close()
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	mr, err := peer.RegisterPersistent(m.Bytes(), rpma.ReadSrc|rpma.WriteDst|rpma.FlushVisibility|rpma.FlushPersistent, m.PersistBytes)
	if err != nil {
		return err
	}
	defer mr.Close()
	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	fmt.Fprintln(out, "log in", m)
	ready(ep.Addr().String())
	req, err := ep.Accept(ctx, nil)
	if err != nil {
		return err
	}
	// The embedded device makes persistent what a peer flushes, so a flush means what it says.
	offer, err := mr.MarshalBinary()
	if err != nil {
		return err
	}
	offer, err = rpma.PeerConfig{DirectWriteToPMem: true}.AppendBinary(offer)
	if err != nil {
		return err
	}
	conn, err := req.Connect(ctx, offer)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := roles.Ended(ctx, conn); err != nil {
		return err
	}
	n, err := replay(m.Bytes(), func([]byte) {})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "the log has", n, "records")
	return nil
}

// A record is its length, the CRC of its data, and the data.
const header = 8

// replay calls f for each record of a log.
func replay(b []byte, f func(data []byte)) (n int, err error) {
	used := binary.LittleEndian.Uint64(b[valid:])
	if used > uint64(len(b)-start) {
		return 0, fmt.Errorf("%d valid bytes of %d", used, len(b)-start)
	}
	for b = b[start:][:used]; len(b) > 0; n++ {
		if len(b) < header {
			return n, fmt.Errorf("record %d: no header", n)
		}
		length := binary.LittleEndian.Uint32(b)
		if uint64(length) > uint64(len(b)-header) {
			return n, fmt.Errorf("record %d: %d bytes of %d", n, length, len(b)-header)
		}
		data := b[header:][:length]
		if crc32.ChecksumIEEE(data) != binary.LittleEndian.Uint32(b[4:]) {
			return n, fmt.Errorf("record %d: wrong CRC", n)
		}
		f(data)
		b = b[header+length:]
	}
	return n, nil
}

func dial(ctx context.Context, out io.Writer, addr string, n int) (err error) {
	peer, err := roles.RemotePeer(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	conn, err := peer.Dial(ctx, addr, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	offer := conn.PrivateData()
	log, err := rpma.ParseRemoteMR(offer)
	if err != nil {
		return err
	}
	var config rpma.PeerConfig
	if err := config.UnmarshalBinary(offer[rpma.DescriptorSize:]); err != nil {
		return err
	}
	conn.ApplyPeerConfig(config)
	mr, err := peer.Alloc(4096, rpma.ReadDst|rpma.WriteSrc)
	if err != nil {
		return err
	}
	defer mr.Close()
	b := mr.Bytes()

	// Where the log ends. This program is the only one that writes it.
	if err := conn.Do(ctx, rpma.Read(mr.Slice(0, start), log.Slice(0, start))); err != nil {
		return err
	}
	if string(b[:8]) != string(magic) {
		return errors.New("the peer has no log")
	}
	used := binary.LittleEndian.Uint64(b[valid:])
	fmt.Fprintln(out, "the log has", used, "bytes")
	begin := time.Now()
	for i := range n {
		data := fmt.Appendf(b[:header], "record %d of %d", i+1, n)[header:]
		binary.LittleEndian.PutUint32(b, uint32(len(data)))
		binary.LittleEndian.PutUint32(b[4:], crc32.ChecksumIEEE(data))
		length := header + len(data)
		if used > log.Size()-start || uint64(length) > log.Size()-start-used {
			return errors.New("the log is full")
		}
		place := log.Slice(start+used, length)
		used += uint64(length)
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], used)
		// One batch, one wait: the atomic write begins when the first flush is done.
		if err := conn.Do(ctx,
			rpma.Write(place, mr.Slice(0, length)),
			rpma.Flush(place, rpma.Persistent),
			rpma.AtomicWrite(log.Slice(valid, 8), v),
			rpma.Flush(log.Slice(valid, 8), rpma.Persistent),
		); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "appended %d records, each persistent, in %v\n", n, time.Since(begin).Round(time.Microsecond))
	return nil
}
