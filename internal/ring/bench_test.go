package ring

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// hostPair is a connection over the host's own sockets, through its loopback interface.
func hostPair(t testing.TB, cfg *Config) (*Conn, *Conn) {
	t.Helper()
	p := softroce.New(&softroce.Config{})
	ctx := context.Background()
	ln, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 8})
	require.NoError(t, err)
	ch := make(chan accepted, 1)
	go func() {
		id, err := ln.GetRequest(ctx)
		if err != nil {
			ch <- accepted{nil, err}
			return
		}
		Server(id, cfg, func(c *Conn, err error) { ch <- accepted{c, err} })
	}()
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: ln.Addr()})
	require.NoError(t, err)
	c, err := Client(ctx, id, cfg)
	require.NoError(t, err)
	s := <-ch
	require.NoError(t, s.err)
	t.Cleanup(func() {
		_, _, _ = c.Close(), s.c.Close(), ln.Close()
		require.NoError(t, Drain(ctx))
		require.NoError(t, p.Drain(ctx))
	})
	return c, s.c
}

func tcpPair(t testing.TB) (net.Conn, net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c, s
}

func benchPingPong(b *testing.B, c, s io.ReadWriter, size int) {
	go func() {
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(s, buf); err != nil {
				return
			}
			if _, err := s.Write(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func benchStream(b *testing.B, c, s io.ReadWriter, size int) {
	done := make(chan struct{})
	total := 0
	go func() {
		defer close(done)
		buf := make([]byte, 256<<10)
		for {
			n, err := s.Read(buf)
			if total += n; err != nil {
				return
			}
		}
	}()
	buf := make([]byte, size)
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = c.(io.Closer).Close()
	<-done
}

func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{64, 200, 4096, 65536} {
		name := map[int]string{64: "64", 200: "200", 4096: "4K", 65536: "64K"}[size]
		b.Run("softroce/"+name, func(b *testing.B) {
			c, s := hostPair(b, nil)
			benchPingPong(b, c, s, size)
			st := c.Stats()
			b.ReportMetric(float64(st.Parks)/float64(b.N), "parks/op")
		})
		b.Run("tcp/"+name, func(b *testing.B) {
			c, s := tcpPair(b)
			benchPingPong(b, c, s, size)
		})
	}
}

func BenchmarkStream(b *testing.B) {
	for _, size := range []int{200, 1024, 65536, 1 << 20} {
		name := map[int]string{200: "200", 1024: "1K", 65536: "64K", 1 << 20: "1M"}[size]
		b.Run("softroce/"+name, func(b *testing.B) {
			c, s := hostPair(b, nil)
			benchStream(b, c, s, size)
			st := c.Stats()
			b.ReportMetric(float64(st.CreditStalls)/float64(b.N), "stalls/op")
			b.ReportMetric(float64(st.Retransmits), "retransmits")
		})
		b.Run("tcp/"+name, func(b *testing.B) {
			c, s := tcpPair(b)
			benchStream(b, c, s, size)
		})
	}
}

// TestIdleMemory: an idle connection costs little memory and no goroutine.
func TestIdleMemory(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	write(t, c, []byte("warm"))
	readN(t, s, 4)
	measure := func() (heap uint64, goroutines, arenas, bytes int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_, arenas, bytes = rc.Usage()
		return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine(), arenas, bytes
	}
	heap0, g0, _, bytes0 := measure()
	const n = 300
	conns := make([]*Conn, 0, 2*n)
	for range n {
		c, s := w.pair()
		write(t, c, []byte("ping"))
		readN(t, s, 4)
		write(t, s, []byte("pong"))
		readN(t, c, 4)
		conns = append(conns, c, s)
	}
	heap1, g1, _, bytes1 := measure()
	heap, registered := int(heap1-heap0)/len(conns), (bytes1-bytes0)/len(conns)
	t.Logf("a connection: %d bytes of heap, %d registered", heap, registered)
	if !raceEnabled && heap+registered > 64<<10 || registered > 24<<10 {
		t.Errorf("an idle connection costs %d bytes of heap and %d of registered memory", heap, registered)
	}
	if g1 > g0+10 {
		t.Errorf("%d goroutines for %d connections", g1-g0, len(conns))
	}
	runtime.KeepAlive(conns)
}
