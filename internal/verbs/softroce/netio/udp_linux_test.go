package netio

import (
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// routes lists the address pairs of this host that tests use: loopback, and every other
// address to itself.
func routes(t testing.TB, u *UDP) []Path {
	t.Helper()
	l := []Path{
		{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")},
		{Local: addr("127.0.0.2"), Remote: addr("127.0.0.1")},
	}
	own, err := u.Addrs()
	require.NoError(t, err)
	require.NotEmpty(t, own)
	for _, a := range own {
		if a != addr("127.0.0.1") {
			l = append(l, Path{Local: a, Remote: a})
		}
	}
	return l
}

// exchange sends batches of all lengths each way.
func exchange(t *testing.T, mod func(*Config), single bool) {
	p := newPair(t, mod)
	rs := routes(t, p.a)
	for i := range rs {
		path := &rs[i]
		t.Run(path.Local.String()+">"+path.Remote.String(), func(t *testing.T) {
			path.SetSingle(single)
			for _, dir := range []struct {
				from *UDP
				to   *sink
			}{{p.a, p.sb}, {p.b, p.sa}} {
				back := &Path{Local: path.Local, Remote: path.Remote}
				back.SetSingle(single)
				if dir.from == p.a {
					back = path
				}
				testLengths(t, dir.from, dir.to, back)
			}
		})
	}
	for _, u := range []*UDP{p.a, p.b} {
		require.Zero(t, u.Stats())
	}
}

func testLengths(t *testing.T, from *UDP, to *sink, path *Path) {
	b := NewTxBatch()
	send := func(lengths ...int) {
		t.Helper()
		for i, n := range lengths {
			put(b, path, uint32(i), pattern(n))
		}
		require.NoError(t, from.Send(b))
		require.Zero(t, b.Len())
		ps := to.take(t, len(lengths))
		for i, n := range lengths {
			check(t, &ps[i], uint32(i), pattern(n))
			require.Equal(t, path.Local, ps[i].Remote.Addr())
			require.Equal(t, path.Remote, ps[i].Local)
			require.EqualValues(t, 64, ps[i].HopLimit)
		}
	}
	for n := range 70 {
		send(n)
	}
	for _, n := range []int{255, 256, 257, 1023, 1024, 1025, 2048, 4095, 4096} {
		send(n)
		send(n, n, n, n, n/2)
		send(n, n, n+4, n+4, 4, 8, 8, 8, 0, 0)
	}
	full := make([]int, MaxBatch)
	for i := range full {
		full[i] = 1024
	}
	send(full...)
	for i := range full {
		full[i] = i * 7 % 300
	}
	send(full...)
	require.NoError(t, path.Err())
}

func TestExchange(t *testing.T) {
	t.Run("offload", func(t *testing.T) { exchange(t, nil, false) })
	t.Run("single", func(t *testing.T) { exchange(t, nil, true) })
	t.Run("noGSO", func(t *testing.T) { exchange(t, func(c *Config) { c.NoGSO = true }, false) })
	t.Run("noGRO", func(t *testing.T) { exchange(t, func(c *Config) { c.NoGRO = true }, false) })
	t.Run("plain", func(t *testing.T) { exchange(t, func(c *Config) { c.NoGSO, c.NoGRO = true, true }, false) })
}

// TestSegmentIdentification receives without GRO, so that the kernel cuts the sends, and
// expects the segments' numbers.
func TestSegmentIdentification(t *testing.T) {
	p := newPair(t, func(c *Config) { c.NoGRO = true })
	if !p.a.gso {
		t.Skip("kernel without UDP_SEGMENT")
	}
	b := NewTxBatch()
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	for i := range uint32(MaxBatch) {
		put(b, path, i, pattern(100))
	}
	require.NoError(t, p.a.Send(b))
	for i, pk := range p.sb.take(t, MaxBatch) {
		require.EqualValues(t, i, pk.ID)
	}
}

func TestTrafficClassAndHopLimit(t *testing.T) {
	p := newPair(t, nil)
	for _, path := range []*Path{
		{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1"), TrafficClass: 0x68, HopLimit: 7},
		{Local: addr("::1"), Remote: addr("::1"), TrafficClass: 0x6a, HopLimit: 255},
		{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1"), HopLimit: 1},
		{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1"), TrafficClass: 0x22},
	} {
		b := NewTxBatch()
		put(b, path, 1, pattern(9))
		put(b, path, 2, pattern(9)) // a send in segments as well
		require.NoError(t, p.a.Send(b))
		for _, pk := range p.sb.take(t, 2) {
			require.Equal(t, path.TrafficClass, pk.TrafficClass)
			want := path.HopLimit
			if want == 0 {
				want = 64
			}
			require.Equal(t, want, pk.HopLimit)
		}
	}
}

// TestFlows sends on every source port and on two paths in one batch.
func TestFlows(t *testing.T) {
	p := newPair(t, nil)
	ports := map[uint16]int{}
	b := NewTxBatch()
	paths := make([]Path, 8)
	for i := range paths {
		paths[i].Local, paths[i].Remote = addr("127.0.0.1"), addr("127.0.0.1")
		if i >= 4 {
			paths[i].Local, paths[i].Remote = addr("::1"), addr("::1")
		}
		paths[i].SetFlow(uint32(100 + i))
	}
	for i := range MaxBatch {
		put(b, &paths[i%8], uint32(i), pattern(64))
	}
	require.NoError(t, p.a.Send(b))
	last := map[netip.AddrPort]uint32{}
	for _, pk := range p.sb.take(t, MaxBatch) {
		ports[pk.Remote.Port()]++
		psn := uint32(pk.Data[11])
		if l, ok := last[pk.Remote]; ok {
			require.Greater(t, psn, l, "order within a flow")
		}
		last[pk.Remote] = psn
	}
	require.Len(t, last, 8)
	for _, f := range p.a.tx {
		for _, s := range f {
			require.Contains(t, ports, s.port)
		}
	}
}

// rawSend sends d as a datagram to u's port.
func rawSend(t *testing.T, u *UDP, d []byte) {
	t.Helper()
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)},
		&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(u.cfg.Port)})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(d)
	require.NoError(t, err)
}

// seeded is a packet that a socket on port src would send.
func seeded(src uint16, id uint16, payload []byte) []byte {
	d := make([]byte, 12, 16+len(payload))
	d[0], d[1] = 4, byte(-len(payload)&3)<<4
	d = append(d, payload...)
	d = append(d, make([]byte, -len(payload)&3)...)
	a := addr("127.0.0.1")
	crc := wire.ICRCStart(a, a, src, 8+len(d)+4, id)
	crc = wire.ICRCHeader(crc, d[:12])
	crc = wire.ICRCBytes(crc, d[12:])
	d = append(d, 0, 0, 0, 0)
	wire.PutICRC(d[len(d)-4:], crc)
	return d
}

func TestBadPackets(t *testing.T) {
	p := newPair(t, nil)
	good := NewTxBatch()
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}

	want := Stats{}
	for _, n := range []int{0, 1, 4, 12, 15, 17, 18, 19, 21} {
		rawSend(t, p.b, pattern(n))
		want.Runts++
	}
	for _, n := range []int{16, 20, 64, 1024} {
		rawSend(t, p.b, pattern(n)) // no RoCE at all
		want.BadICRC++
	}
	// One that is right gets through behind them.
	put(good, path, 7, pattern(100))
	require.NoError(t, p.a.Send(good))
	ps := p.sb.take(t, 1)
	check(t, &ps[0], 7, pattern(100))
	require.Eventually(t, func() bool { return p.b.Stats() == want }, 5*time.Second, time.Millisecond,
		"%+v, want %+v", p.b.Stats(), want)
}

// TestCorruption flips every bit of a packet in turn.
func TestCorruption(t *testing.T) {
	p := newPair(t, nil)
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)},
		&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p.b.cfg.Port)})
	require.NoError(t, err)
	defer c.Close()
	src := uint16(c.LocalAddr().(*net.UDPAddr).Port)
	// First a history that makes the identification known.
	for range trustAfter {
		_, err := c.Write(seeded(src, 0, pattern(30)))
		require.NoError(t, err)
	}
	p.sb.take(t, trustAfter)
	d := seeded(src, 0, pattern(30))
	flips := 0
	for bit := range 8 * len(d) {
		if bit/8 == 4 {
			continue // not covered: FECN, BECN, reserved
		}
		d[bit/8] ^= 1 << (bit % 8)
		_, err := c.Write(d)
		require.NoError(t, err)
		d[bit/8] ^= 1 << (bit % 8)
		flips++
		if flips%50 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	_, err = c.Write(d)
	require.NoError(t, err)
	require.Len(t, p.sb.take(t, 1), 1)
	require.Eventually(t, func() bool { return p.b.Stats().BadICRC == uint64(flips) }, 5*time.Second, time.Millisecond)
	require.Zero(t, p.sb.count())
}

func TestSendErrors(t *testing.T) {
	p := newPair(t, nil)
	b := NewTxBatch()
	good := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	for _, c := range []struct {
		name string
		path *Path
		size int
		n    int
		want error
	}{
		{"too long", &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}, 65520, 1, syscall.EMSGSIZE},
		{"source not ours", &Path{Local: addr("198.51.100.7"), Remote: addr("127.0.0.1")}, 10, 1, syscall.EADDRNOTAVAIL},
		{"sources not ours", &Path{Local: addr("198.51.100.7"), Remote: addr("127.0.0.1")}, 10, 5, syscall.EADDRNOTAVAIL},
		{"no source", &Path{Remote: addr("127.0.0.1")}, 10, 1, syscall.EADDRNOTAVAIL},
		{"families", &Path{Local: addr("::1"), Remote: addr("127.0.0.1")}, 10, 1, syscall.EADDRNOTAVAIL},
	} {
		t.Run(c.name, func(t *testing.T) {
			put(b, good, 1, pattern(5))
			for i := range c.n {
				put(b, c.path, uint32(i), pattern(c.size))
			}
			put(b, good, 2, pattern(5))
			require.ErrorIs(t, p.a.Send(b), c.want)
			require.Zero(t, b.Len())
			require.ErrorIs(t, c.path.Err(), c.want)
			require.NoError(t, good.Err())
			ps := p.sb.take(t, 2)
			check(t, &ps[0], 1, pattern(5))
			check(t, &ps[1], 2, pattern(5))
		})
	}
	u := listen(t, Config{Port: freePort(t), Handler: newSink()})
	require.NoError(t, u.Close())
	put(b, good, 1, nil)
	require.ErrorIs(t, u.Send(b), net.ErrClosed)
	require.Zero(t, u.Poll())
	u.Prefer(good.Local, netip.AddrPortFrom(good.Remote, 1))
	require.NoError(t, u.Close())
}

// TestNobodyThere sends where no socket is: the ICMP messages that come back must not
// break anything.
func TestNobodyThere(t *testing.T) {
	u := listen(t, Config{Port: freePort(t), RemotePort: freePort(t), Handler: newSink()})
	b := NewTxBatch()
	for _, a := range []string{"127.0.0.1", "::1"} {
		path := &Path{Local: addr(a), Remote: addr(a)}
		for range 50 {
			for range 10 {
				put(b, path, 1, pattern(100))
			}
			require.NoError(t, u.Send(b))
		}
	}
}

// TestGSORefused meets a path whose MTU is below that of the segments.
func TestGSORefused(t *testing.T) {
	p := newPair(t, nil)
	if !p.a.gso {
		t.Skip("kernel without UDP_SEGMENT")
	}
	own, err := p.a.Addrs()
	require.NoError(t, err)
	b := NewTxBatch()
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	// Two packets that together exceed what one send may hold stay two sends.
	put(b, path, 0, pattern(40000))
	put(b, path, 1, pattern(40000))
	require.NoError(t, p.a.Send(b))
	p.sb.take(t, 2)
	// Nothing larger than the interface's MTU leaves this host.
	for _, a := range own {
		if !a.Is4() || a.IsLoopback() {
			continue
		}
		far := &Path{Local: a, Remote: addr("192.0.2.77")}
		r, err := p.a.Route(a, far.Remote)
		if err != nil || r.MTU > 9000 {
			continue
		}
		for range 3 {
			for i := range 4 {
				put(b, far, uint32(i), pattern(r.MTU))
			}
			put(b, path, 4, nil)
			require.ErrorIs(t, p.a.Send(b), syscall.EMSGSIZE)
			require.ErrorIs(t, far.Err(), syscall.EMSGSIZE)
			require.NoError(t, path.Err())
			p.sb.take(t, 1)
		}
		return
	}
	t.Log("no interface with a small MTU")
}

// TestManyFragments has more of them in a batch than one send takes.
func TestManyFragments(t *testing.T) {
	p := newPair(t, nil)
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	b := NewTxBatch()
	data := pattern(256)
	for i := range uint32(MaxBatch) {
		put(b, path, i, nil)
		for j := range data {
			b.Payload(data[j : j+1])
		}
	}
	require.NoError(t, p.a.Send(b))
	for i, pk := range p.sb.take(t, MaxBatch) {
		check(t, &pk, uint32(i), data)
	}
	require.False(t, path.enc.Load().noGSO.Load())
}

func TestPoll(t *testing.T) {
	p := newPair(t, nil)
	b := NewTxBatch()
	for _, a := range []string{"127.0.0.1", "::1"} {
		path := &Path{Local: addr(a), Remote: addr(a)}
		put(b, path, 0, pattern(10))
		require.NoError(t, p.a.Send(b)) // warms the socket up
		p.sb.take(t, 1)
		polled := 0
		for i := range uint32(2000) {
			put(b, path, i, pattern(10))
			require.NoError(t, p.a.Send(b))
			polled += p.b.Poll()
			ps := p.sb.take(t, 1)
			check(t, &ps[0], i, pattern(10))
		}
		require.Positive(t, polled, a)
	}
	for range 1000 {
		require.Zero(t, p.b.Poll())
	}
}

// TestNothingLost lets the poller and spinning Polls compete.
func TestNothingLost(t *testing.T) {
	p := newPair(t, nil)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				p.b.Poll()
				runtime.Gosched()
			}
		}
	}()
	b := NewTxBatch()
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	for i := range uint32(3000) {
		n := int(i%20) + 1
		for j := range n {
			put(b, path, i<<8|uint32(j), pattern(j*5))
		}
		require.NoError(t, p.a.Send(b))
		for j, pk := range p.sb.take(t, n) {
			check(t, &pk, i<<8|uint32(j), pattern(j*5))
		}
	}
	close(stop)
	<-done
}

func TestClose(t *testing.T) {
	before := fds(t)
	for range 20 {
		p := &pair{sa: newSink(), sb: newSink()}
		u, err := Listen(Config{Port: freePort(t), Handler: p.sa})
		require.NoError(t, err)
		b := NewTxBatch()
		path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
		put(b, path, 0, pattern(10))
		require.NoError(t, u.Send(b))
		src := p.sa.take(t, 1)[0].Remote
		u.Prefer(path.Local, src)
		put(b, path, 0, pattern(10))
		require.NoError(t, u.Send(b))
		require.NoError(t, u.Close())
	}
	require.Equal(t, before, fds(t))
}

// TestCloseUnderLoad closes while packets come, are polled and are sent.
func TestCloseUnderLoad(t *testing.T) {
	before := fds(t)
	for range 30 {
		u, err := Listen(Config{Port: freePort(t), Handler: newSink()})
		require.NoError(t, err)
		done := make(chan error)
		for range 2 {
			go func() {
				b := NewTxBatch()
				path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
				for {
					for range 10 {
						put(b, path, 0, pattern(10))
					}
					if err := u.Send(b); err != nil {
						done <- err
						return
					}
					u.Poll()
				}
			}()
		}
		time.Sleep(time.Millisecond)
		require.NoError(t, u.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
		require.ErrorIs(t, <-done, net.ErrClosed)
	}
	require.Equal(t, before, fds(t))
}

// nothing is a handler that counts.
type nothing struct{ n int }

func (h *nothing) HandlePackets(ps []Packet) { h.n += len(ps) }

func TestNoAllocation(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for _, a := range []string{"127.0.0.1", "::1"} {
		for _, n := range []int{1, 30} {
			h := &nothing{}
			u := listen(t, Config{Port: freePort(t), Handler: h})
			b := NewTxBatch()
			path := &Path{Local: addr(a), Remote: addr(a), TrafficClass: 4, HopLimit: 9}
			data := pattern(1024)
			round := func() {
				for i := range n {
					put(b, path, uint32(i), data)
				}
				if err := u.Send(b); err != nil {
					t.Fatal(err)
				}
				for end := time.Now().Add(time.Millisecond); u.Poll() == 0 && time.Now().Before(end); {
					runtime.Gosched()
				}
			}
			for range 100 {
				round()
			}
			require.Zero(t, testing.AllocsPerRun(500, round), "%s, %d packets", a, n)
		}
	}
}

// TestRaceEdge has the detector watch memory that only the packet orders.
func TestRaceEdge(t *testing.T) {
	x := 0
	seen := make(chan int, 1)
	u := listen(t, Config{Port: freePort(t), Handler: handlerFunc(func([]Packet) { seen <- x })})
	b := NewTxBatch()
	path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
	x = 1
	put(b, path, 0, nil)
	require.NoError(t, u.Send(b))
	require.Equal(t, 1, <-seen)
}

type handlerFunc func([]Packet)

func (f handlerFunc) HandlePackets(ps []Packet) { f(ps) }
