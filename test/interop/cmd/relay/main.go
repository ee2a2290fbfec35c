// relay passes on what comes, over package rdmanet at both ends: for each connection that it accepts it dials one, and copies
// both ways until both are over. The end of either direction is passed on as such.
//
//	relay -addr ADDRESS -to ADDRESS
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

func main() { peer.Main("relay", run) }

func run(args []string) error {
	fs := flag.NewFlagSet("relay", flag.ContinueOnError)
	addr := fs.String("addr", ":7000", "`address` to listen on")
	to := fs.String("to", "", "`address` to dial")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *to == "" {
		return errors.New("usage: relay -addr ADDRESS -to ADDRESS")
	}
	l, err := peer.Listen(&rdmanet.ListenConfig{}, *addr)
	if err != nil {
		return err
	}
	for {
		in, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := relay(in.(*rdmanet.Conn), *to); err != nil {
				fmt.Println(err)
			}
		}()
	}
}

func relay(in *rdmanet.Conn, to string) error {
	defer in.Close()
	c, err := new(rdmanet.Dialer).DialContext(context.Background(), "rdma", to)
	if err != nil {
		return err
	}
	out := c.(*rdmanet.Conn)
	defer out.Close()
	var wg sync.WaitGroup
	wg.Go(func() { oneWay(out, in) })
	wg.Go(func() { oneWay(in, out) })
	wg.Wait()
	return nil
}

// oneWay copies until src ends. When dst is gone, src need not send any more.
func oneWay(dst, src *rdmanet.Conn) {
	_, err := io.Copy(dst, src)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		_, _ = dst.Close(), src.Close() // both are of no use any more
	}
}
