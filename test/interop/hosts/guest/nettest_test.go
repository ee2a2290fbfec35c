//go:build guest

package guest

import (
	"context"
	"flag"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/go-rdma/rdma/rdmanet"
)

var (
	listen = flag.String("listen", "", "address that the relay dials")
	relay  = flag.String("relay", "", "address of the relay")
)

// TestConn holds both ends of connections that a relay on another host joins: what it sees is one connection made by
// this host, and one made by the other.
func TestConn(t *testing.T) {
	l, err := new(rdmanet.ListenConfig).Listen(context.Background(), "rdma", *listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		type accepted struct {
			c   net.Conn
			err error
		}
		done := make(chan accepted, 1)
		go func() {
			c, err := l.Accept()
			done <- accepted{c, err}
		}()
		if c1, err = rdmanet.Dial("rdma", *relay); err != nil {
			return nil, nil, nil, err
		}
		a := <-done
		if a.err != nil {
			_ = c1.Close()
			return nil, nil, nil, a.err
		}
		return c1, a.c, func() {
			_ = c1.Close()
			_ = a.c.Close()
		}, nil
	})
}
