//go:build guest

package guest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
	"github.com/go-rdma/rdma/rdmanet"
)

var (
	device = flag.String("device", "rxe0", "the RDMA device, which TestRemoval removes on the way")
	iface  = flag.String("iface", "vpeer", "the interface that it is on")
)

// TestRemoval takes the device away under traffic: connections end with ENODEV, and the kernel, which with rxe waits for
// whoever has the device open, does not wait for this process. When it is back, listeners serve and dials work.
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
	del := rdma(t, "link", "del", *device)
	wg.Wait()
	t.Logf("ended after %v: %v", time.Since(begin), ends)
	for _, err := range ends {
		assert.True(t, errors.Is(err, syscall.ENODEV), "%v", err)
	}
	// The kernel waits for whoever has the device open, and that is nobody, though nothing is closed yet.
	require.NoError(t, <-del)
	t.Logf("removed after %v", time.Since(begin))
	_, err := dial(listeners[0])
	require.ErrorIs(t, err, rdmanet.ErrNoDevice)
	t.Log(err)

	require.NoError(t, <-rdma(t, "link", "add", *device, "type", "rxe", "netdev", *iface))
	back := time.Now()
	for _, l := range listeners {
		var c net.Conn
		require.Eventually(t, func() bool {
			c, err = dial(l)
			return err == nil
		}, 20*time.Second, 100*time.Millisecond)
		require.NoError(t, echo(c, true))
		conns = append(conns, c)
	}
	t.Logf("serves again after %v", time.Since(back))
	for _, c := range conns {
		require.NoError(t, c.Close())
	}

	// Nothing but the listeners is left, and then nothing at all.
	require.NoError(t, <-rdma(t, "link", "del", *device))
	for _, l := range listeners {
		require.NoError(t, l.Close())
	}
	require.NoError(t, <-rdma(t, "link", "add", *device, "type", "rxe", "netdev", *iface))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p := rdmacore.Default()
	require.Eventually(t, func() bool {
		id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(a, 9), Handler: func(verbs.Event) {}})
		if err != nil {
			return false
		}
		return id.Close() == nil
	}, 20*time.Second, 100*time.Millisecond)
	dev, err := p.Open(*device)
	require.NoError(t, err)
	pd, err := dev.AllocPD() // what has no connection does not hold it either
	require.NoError(t, err)
	require.NoError(t, <-rdma(t, "link", "del", *device))
	_, err = dev.CreateCQ(&verbs.CQAttr{Depth: 1})
	require.ErrorIs(t, err, syscall.ENODEV)
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
	require.NoError(t, <-rdma(t, "link", "add", *device, "type", "rxe", "netdev", *iface))
}

// rdma runs the program, and tells how it ended. The kernel may keep it waiting.
func rdma(t *testing.T, args ...string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	cmd := exec.Command("rdma", args...)
	require.NoError(t, cmd.Start())
	go func() { done <- cmd.Wait() }()
	limited := make(chan error, 1)
	go func() {
		select {
		case err := <-done:
			limited <- err
		case <-time.After(30 * time.Second):
			limited <- fmt.Errorf("rdma %q waits", args)
		}
	}()
	return limited
}
