//go:build guest

package guest

import (
	"errors"
	"flag"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

var device = flag.String("device", "rxe0", "the RDMA device, which is removed on the way")

// TestRemoval takes the device away under traffic: connections end with ENODEV, and everything can be closed. The removal
// itself waits for this process, as for every other that uses librdmacm, which keeps the last device open (rxe
// of Linux 6.1 does not take itself away from those who have it open). So the device is for others to bring back.
func TestRemoval(t *testing.T) {
	a := netip.MustParseAddr(*addr)
	d := &rdmanet.Dialer{Device: "rdmacore", Timeout: 20 * time.Second}
	var listeners []net.Listener
	for _, at := range []netip.Addr{a, netip.IPv4Unspecified()} {
		l, err := (&rdmanet.ListenConfig{Device: "rdmacore"}).Listen(t.Context(), "rdma4", netip.AddrPortFrom(at, 0).String())
		require.NoError(t, err)
		defer l.Close()
		listeners = append(listeners, l)
		go func() { // an echo server
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					buf := make([]byte, 4096)
					for {
						n, err := c.Read(buf)
						if err != nil {
							return
						}
						if _, err := c.Write(buf[:n]); err != nil {
							return
						}
					}
				}()
			}
		}()
	}
	dial := func(l net.Listener) (net.Conn, error) {
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		return d.Dial("rdma4", net.JoinHostPort(a.String(), port))
	}
	// echo sends and receives until it fails.
	echo := func(c net.Conn, once bool) error {
		buf := make([]byte, 1000)
		for {
			if _, err := c.Write(buf); err != nil {
				return err
			}
			if _, err := c.Read(buf); err != nil || once {
				return err
			}
		}
	}
	var conns []net.Conn
	for _, l := range listeners {
		for range 2 {
			c, err := dial(l)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, echo(c, true))
			conns = append(conns, c)
		}
	}
	ends := make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			if i%2 == 0 {
				ends[i] = echo(c, false)
			} else { // an idle one
				_, ends[i] = c.Read(make([]byte, 1))
			}
		})
	}
	time.Sleep(200 * time.Millisecond)
	begin := time.Now()
	del := exec.Command("rdma", "link", "del", *device)
	require.NoError(t, del.Start())
	wg.Wait()
	t.Logf("ended after %v: %v", time.Since(begin), ends)
	for _, err := range ends {
		assert.True(t, errors.Is(err, syscall.ENODEV), "%v", err)
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	_, err := dial(listeners[0])
	require.ErrorIs(t, err, rdmanet.ErrNoDevice)
	t.Log(err)
	for _, l := range listeners {
		require.NoError(t, l.Close())
	}
	require.Less(t, time.Since(begin), 30*time.Second)
}
