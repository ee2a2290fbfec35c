package ring

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func TestMain(m *testing.M) {
	leak.Start()
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	if err := Drain(ctx); err != nil && code == 0 {
		println("connections still closing:", err.Error())
		code = 1
	}
	cancel()
	if err := goleak.Find(); err != nil && code == 0 {
		println(err.Error())
		code = 1
	}
	leak.Exit(code)
}

// world is two hosts on a simulated network, each with a softroce device, and a
// listener on the second.
type world struct {
	t    testing.TB
	net  *simnet.Network
	a, b *softroce.Provider
	addr [2]netip.Addr
	ln   verbs.Listener

	cfg      [2]Config // of client and server
	messages bool      // both do without immediates

	before goleak.Option
}

func newWorld(t testing.TB, o simnet.Options) *world {
	t.Helper()
	return newWorldSeed(t, 1, o, nil)
}

// newWorldSeed is newWorld with a choice of chance, and of the streams' first PSNs.
func newWorldSeed(t testing.TB, seed uint64, o simnet.Options, firstPSN func() uint32) *world {
	t.Helper()
	seed = simnet.Seed(t, seed)
	w := &world{t: t, net: simnet.New(seed, o), before: goleak.IgnoreCurrent()}
	w.addr = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	provider := func(i int) *softroce.Provider {
		return softroce.New(&softroce.Config{
			Open: w.net.Host(w.addr[i]).Open, FirstPSN: firstPSN, Rand: simnet.Random(seed<<1 + uint64(i)),
		})
	}
	w.a, w.b = provider(0), provider(1)
	var err error
	w.ln, err = w.b.Listen(t.Context(), &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(w.addr[1], 0), Backlog: 128,
	})
	require.NoError(t, err)
	t.Cleanup(w.close)
	return w
}

// close waits for background closes, and finds that nothing is left.
func (w *world) close() {
	require.NoError(w.t, w.ln.Close())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(w.t, Drain(ctx))
	require.NoError(w.t, w.a.Drain(ctx))
	require.NoError(w.t, w.b.Drain(ctx))
	devices, arenas, bytes := rc.Usage()
	if devices != 0 || arenas != 0 || bytes != 0 {
		w.t.Errorf("left behind: %d devices, %d arenas, %d bytes", devices, arenas, bytes)
	}
	require.Zero(w.t, unfreed.Load(), "errors of closing")
	// Devices close with the last that is made of them.
	if err := goleak.Find(w.before); err != nil {
		w.t.Error(err)
	}
}

// resolve returns an identifier towards the listener.
func (w *world) resolve() verbs.CMID {
	id, err := w.a.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: w.ln.Addr()})
	require.NoError(w.t, err)
	return id
}

type accepted struct {
	c   *Conn
	err error
}

// accept takes the next request and answers it.
func (w *world) accept() <-chan accepted {
	ch := make(chan accepted, 1)
	go func() {
		id, err := w.ln.GetRequest(context.Background())
		if err != nil {
			ch <- accepted{nil, err}
			return
		}
		cfg := w.cfg[1]
		cfg.Messages = cfg.Messages || w.messages
		Server(id, &cfg, func(c *Conn, err error) { ch <- accepted{c, err} })
	}()
	return ch
}

// pair returns the two ends of a connection, which are closed with the test at the latest.
func (w *world) pair() (client, server *Conn) {
	w.t.Helper()
	ch := w.accept()
	cfg := w.cfg[0]
	cfg.Messages = cfg.Messages || w.messages
	client, err := Client(context.Background(), w.resolve(), &cfg)
	require.NoError(w.t, err)
	s := <-ch
	require.NoError(w.t, s.err)
	w.t.Cleanup(func() { _, _ = client.Close(), s.c.Close() })
	return client, s.c
}

// netConn is a Conn with package net's manners, as far as nettest needs them.
type netConn struct{ *Conn }

func (c netConn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.Conn.LocalAddr()) }
func (c netConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.Conn.RemoteAddr()) }

// within fails the test if f takes longer than d.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s: not done after %v", what, d)
	}
}

// wait is within for what returns nothing else.
func wait(t testing.TB, wg *sync.WaitGroup) {
	t.Helper()
	within(t, 60*time.Second, "goroutines", wg.Wait)
}
