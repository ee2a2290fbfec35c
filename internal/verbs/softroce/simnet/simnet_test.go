package simnet_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	a4, b4 = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
)

// sink records what arrives.
type sink struct {
	mu    sync.Mutex
	psns  []uint32
	times []time.Time
	last  netio.Packet
	data  []byte
}

func (s *sink) HandlePackets(ps []netio.Packet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ps {
		var p wire.Packet
		if err := p.Decode(ps[i].Data); err != nil {
			panic(err)
		}
		s.psns = append(s.psns, p.PSN)
		s.times = append(s.times, time.Now())
		s.last = ps[i]
		s.data = slices.Clone(p.Payload)
	}
}

func (s *sink) got() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.psns)
}

// bench is two hosts; what a sends, b records.
type bench struct {
	net  *simnet.Network
	a, b netio.Conn
	sink sink
	path *netio.Path
	tx   *netio.TxBatch
}

func newBench(t *testing.T, seed uint64, o simnet.Options) *bench {
	x := &bench{net: simnet.New(seed, o), path: &netio.Path{Local: a4, Remote: b4}, tx: netio.NewTxBatch()}
	var err error
	x.a, err = x.net.Host(a4, a6).Open(&sink{})
	require.NoError(t, err)
	x.b, err = x.net.Host(b4, b6).Open(&x.sink)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, x.a.Close())
		require.NoError(t, x.b.Close())
	})
	return x
}

func (x *bench) send(t *testing.T, psns ...uint32) {
	for _, psn := range psns {
		payload := fmt.Appendf(nil, "packet %d", psn)
		p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: 0xFFFF, DestQP: 77, PSN: psn, Pad: wire.PadFor(len(payload))}}
		p.PutHeaders(x.tx.Add(x.path, p.HeaderLen()))
		x.tx.Payload(payload[:3])
		x.tx.Payload(payload[3:])
		if x.tx.Full() {
			require.NoError(t, x.a.Send(x.tx))
		}
	}
	require.NoError(t, x.a.Send(x.tx))
	require.Zero(t, x.tx.Len())
}

func numbers(n int) []uint32 {
	s := make([]uint32, n)
	for i := range s {
		s[i] = uint32(i)
	}
	return s
}

func TestDeliversInOrderAfterTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench(t, 1, simnet.Options{Delay: 3 * time.Millisecond, Jitter: time.Millisecond})
		start := time.Now()
		x.send(t, numbers(200)...)
		synctest.Wait()
		require.Empty(t, x.sink.got())
		time.Sleep(time.Second)
		require.Equal(t, numbers(200), x.sink.got())
		require.GreaterOrEqual(t, x.sink.times[0].Sub(start), 3*time.Millisecond)
		require.LessOrEqual(t, x.sink.times[199].Sub(start), 4*time.Millisecond)
		require.Equal(t, "packet 199", string(x.sink.data))
		require.Equal(t, b4, x.sink.last.Local)
		require.Equal(t, a4, x.sink.last.Remote.Addr())
	})
}

func TestBothFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench(t, 1, simnet.Options{})
		x.path = &netio.Path{Local: a6, Remote: b6, TrafficClass: 7, HopLimit: 9}
		x.send(t, 5)
		synctest.Wait()
		require.Equal(t, []uint32{5}, x.sink.got())
		require.Equal(t, a6, x.sink.last.Remote.Addr())
		require.EqualValues(t, 7, x.sink.last.TrafficClass)
		require.EqualValues(t, 9, x.sink.last.HopLimit)
	})
}

func run(t *testing.T, seed uint64, o simnet.Options) (psns []uint32, stats simnet.Stats) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench(t, seed, o)
		x.send(t, numbers(2000)...)
		time.Sleep(time.Second)
		psns, stats = x.sink.got(), x.net.Stats()
	})
	return
}

func TestSameSeedSameRun(t *testing.T) {
	o := simnet.Options{Loss: 0.1, Dup: 0.1, Reorder: 0.1, Corrupt: 0.1, Delay: time.Millisecond, Jitter: time.Millisecond}
	p1, s1 := run(t, 7, o)
	p2, s2 := run(t, 7, o)
	require.Equal(t, p1, p2)
	require.Equal(t, s1, s2)
	p3, _ := run(t, 8, o)
	require.NotEqual(t, p1, p3)
	for _, n := range []uint64{s1.Lost, s1.Duplicated, s1.Reordered, s1.Corrupted} {
		require.InDelta(t, 200, n, 80)
	}
	require.EqualValues(t, 2000, s1.Sent)
	require.Equal(t, s1.Sent-s1.Lost+s1.Duplicated-s1.BadICRC, s1.Delivered)
	require.False(t, slices.IsSorted(p1))
}

func TestDamageIsNoticed(t *testing.T) {
	psns, stats := run(t, 3, simnet.Options{Corrupt: 1})
	require.Empty(t, psns)
	require.EqualValues(t, 2000, stats.BadICRC)
}

func TestPartitionHealsAndFiltersDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench(t, 1, simnet.Options{})
		x.net.Partition(b4, a4)
		x.send(t, 1)
		x.net.Heal(a4, b4)
		x.send(t, 2)
		x.net.DropNext(2, func(f *simnet.Frame) bool { return f.Data[11]%2 == 1 })
		x.send(t, 3, 4, 5, 6, 7)
		remove := x.net.Filter(nil)
		x.send(t, 8)
		remove()
		x.send(t, 9)
		synctest.Wait()
		require.Equal(t, []uint32{2, 4, 6, 7, 9}, x.sink.got())
	})
}

func TestRateAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 28 to 32 bytes a packet: about ten fit.
		x := newBench(t, 1, simnet.Options{Rate: 32_000, Queue: 320})
		start := time.Now()
		x.send(t, numbers(50)...)
		time.Sleep(time.Second)
		require.Equal(t, numbers(len(x.sink.got())), x.sink.got())
		require.InDelta(t, 11, len(x.sink.got()), 2)
		took := x.sink.times[len(x.sink.times)-1].Sub(start)
		require.InDelta(t, 10, took.Milliseconds(), 2)
	})
}

func TestProcessesShareThePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		src, err := n.Host(a4).Open(&sink{})
		require.NoError(t, err)
		defer src.Close()
		dst := n.Host(b4)
		sinks := make([]sink, 2)
		var conns [2]netio.Conn
		for i := range conns {
			conns[i], err = dst.Open(&sinks[i])
			require.NoError(t, err)
			defer conns[i].Close()
		}
		x := &bench{net: n, a: src, path: &netio.Path{Local: a4, Remote: b4}, tx: netio.NewTxBatch()}
		x.send(t, 1, 2, 3)
		synctest.Wait()
		hit := 0
		if len(sinks[1].got()) > 0 {
			hit = 1
		}
		require.Len(t, sinks[hit].got(), 3, "one flow, one process")
		conns[1-hit].Prefer(b4, sinks[hit].last.Remote)
		x.send(t, 4)
		synctest.Wait()
		require.Equal(t, []uint32{4}, sinks[1-hit].got())
	})
}

func TestRoutes(t *testing.T) {
	x := newBench(t, 1, simnet.Options{MTU: 1500})
	r, err := x.a.Route(netip.Addr{}, b6)
	require.NoError(t, err)
	require.Equal(t, a6, r.Local)
	require.Equal(t, 1500, r.MTU)
	_, err = x.a.Route(b4, a4)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	_, err = x.a.Route(a4, b6)
	require.ErrorIs(t, err, syscall.ENETUNREACH)

	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly}}
	p.PutHeaders(x.tx.Add(x.path, p.HeaderLen()))
	x.tx.Payload(make([]byte, 1500))
	require.ErrorIs(t, x.a.Send(x.tx), syscall.EMSGSIZE)
}

func TestClosedConn(t *testing.T) {
	x := newBench(t, 1, simnet.Options{})
	require.NoError(t, x.a.Close())
	require.ErrorIs(t, x.a.Send(x.tx), net.ErrClosed)
}

func TestPollHandsOverWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBench(t, 1, simnet.Options{})
		require.Zero(t, x.b.Poll())
		x.send(t, 1)
		for len(x.sink.got()) == 0 { // the connection's goroutine may be quicker
			x.b.Poll()
		}
	})
}
