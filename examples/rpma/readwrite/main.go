// readwrite reads and writes memory of a peer whose program does nothing meanwhile.
//
// The server registers a region and tells the client of it in the private data of the connection; docs/security.md says what
// that does not protect from, and the example tls how to do it where that matters.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rpma"
)

var example = roles.Example{Serve: serve, Dial: dial}

func main() { roles.Main(example) }

const size = 1 << 20

func serve(ctx context.Context, out io.Writer, addr string, ready func(string)) (err error) {
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	mr, err := peer.Alloc(size, rpma.ReadSrc|rpma.WriteDst|rpma.FlushVisibility)
	if err != nil {
		return err
	}
	defer mr.Close()
	copy(mr.Bytes(), "What is here can be read from afar.")

	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	ready(ep.Addr().String())
	req, err := ep.Accept(ctx, nil)
	if err != nil {
		return err
	}
	descriptor, err := mr.MarshalBinary()
	if err != nil {
		return err
	}
	conn, err := req.Connect(ctx, descriptor)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := roles.Ended(ctx, conn); err != nil {
		return err
	}
	fmt.Fprintf(out, "found %q\n", text(mr.Bytes()))
	return nil
}

func dial(ctx context.Context, out io.Writer, addr string) (err error) {
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
	remote, err := rpma.ParseRemoteMR(conn.PrivateData())
	if err != nil {
		return err
	}
	mr, err := peer.Alloc(4096, rpma.ReadDst|rpma.WriteSrc)
	if err != nil {
		return err
	}
	defer mr.Close()

	if err := conn.Do(ctx, rpma.Read(mr.Slice(0, 100), remote.Slice(0, 100))); err != nil {
		return err
	}
	fmt.Fprintf(out, "read %q of %d bytes\n", text(mr.Bytes()), remote.Size())

	n := copy(mr.Bytes(), "And what is here was written from afar.\x00")
	return conn.Do(ctx,
		rpma.Write(remote.Slice(0, n), mr.Slice(0, n)),
		rpma.Flush(remote.Slice(0, n), rpma.Visibility), // the program there sees it
	)
}

// text is what is before the first zero.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
