package rdmanet_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// ipLink runs ip(8).
func ipLink(t *testing.T, args string) {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	require.NoError(t, err, "ip %s (package iproute2): %s", args, out)
}

// TestInterfaceGoes: an interface is taken down under connections, or away altogether, and comes back. Those that were over it end or
// go on, Close returns, and listeners serve the address as soon as it is there again: the one on all addresses and the one on that.
func TestInterfaceGoes(t *testing.T) {
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	const address = "10.9.0.1"
	up := func() {
		ipLink(t, "link add va type veth peer name vb")
		ipLink(t, "link set vb up")
		ipLink(t, "link set va up")
		ipLink(t, "addr add "+address+"/24 dev va")
	}
	up()
	serve := func(host string) net.Listener {
		l, err := rdmanet.Listen("rdma4", net.JoinHostPort(host, "0"))
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					c.Close()
				}()
			}
		}()
		return l
	}
	listeners := []net.Listener{serve(""), serve(address)}
	echo := func(c net.Conn) error {
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("echo")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 4))
		return err
	}
	connect := func(l net.Listener) net.Conn {
		_, port, err := net.SplitHostPort(l.Addr().String())
		require.NoError(t, err)
		c, err := rdmanet.DialTimeout("rdma4", net.JoinHostPort(address, port), 20*time.Second)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		require.NoError(t, echo(c))
		return c
	}
	for name, goes := range map[string][2]func(){
		"down": {func() { ipLink(t, "link set va down") }, func() { ipLink(t, "link set va up") }},
		"away": {func() { ipLink(t, "link del va") }, up},
	} {
		t.Run(name, func(t *testing.T) {
			var conns []net.Conn
			for range 5 {
				conns = append(conns, connect(listeners[0]), connect(listeners[1]))
			}
			goes[0]()
			for i, c := range conns { // half of them have data on the way
				if i%2 == 0 {
					_, _ = c.Write([]byte("in vain, or not"))
				}
			}
			time.Sleep(300 * time.Millisecond)
			closeAll := func(when string, conns []net.Conn) {
				var wg sync.WaitGroup
				for _, c := range conns {
					wg.Go(func() { assert.NoError(t, c.Close()) })
				}
				within(t, 10*time.Second, "Close "+when, wg.Wait)
			}
			closeAll("while there is no interface", conns[:4])
			goes[1]()
			var wg sync.WaitGroup
			for i, c := range conns[4:] {
				if i%2 == 1 { // an idle one
					wg.Go(func() { assert.NotErrorIs(t, echo(c), os.ErrDeadlineExceeded, "it works or is over") })
				}
			}
			wg.Wait()
			closeAll("afterwards", conns[4:])
			for _, l := range listeners {
				require.NoError(t, connect(l).Close())
			}
		})
	}
}
