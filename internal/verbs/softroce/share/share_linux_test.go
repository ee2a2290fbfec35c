package share

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

var any4 = netip.IPv4Unspecified()

// testPort gives each test names of its own.
func testPort() uint16 { return uint16(10000 + rand.IntN(50000)) }

func join(t testing.TB, cfg Config) *Process {
	t.Helper()
	p, err := Join(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// inbox keeps what is handed over, as text.
type inbox chan string

func (in inbox) received(p *netio.Packet) { in <- describe(p) }

func (in inbox) take(t *testing.T) string {
	t.Helper()
	select {
	case s := <-in:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
	}
	return ""
}

func fds(t testing.TB) int {
	t.Helper()
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller opens some at first use
		r.Close()
		w.Close()
	}
	l, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(l)
}

func TestSlots(t *testing.T) {
	port := testPort()
	seen := map[uint8]bool{}
	var children []*proc
	for range 8 {
		c := newChild(t, port)
		require.NotZero(t, c.slot)
		require.LessOrEqual(t, c.slot, uint8(MaxSlot))
		require.False(t, seen[c.slot], "slot %d twice", c.slot)
		seen[c.slot] = true
		children = append(children, c)
	}
	// All that is left, here.
	var ps []*Process
	for range MaxSlot - len(children) {
		p := join(t, Config{Port: port})
		require.False(t, seen[p.Slot()])
		seen[p.Slot()] = true
		ps = append(ps, p)
	}
	require.Len(t, seen, MaxSlot)
	_, err := Join(Config{Port: port})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "254 slots")

	// Another UDP port is another world.
	require.NotZero(t, join(t, Config{Port: port + 1}).Slot())

	// A slot is free again when its process dies or leaves.
	children[3].kill()
	require.Equal(t, children[3].slot, join(t, Config{Port: port}).Slot())
	require.NoError(t, ps[5].Close())
	require.Equal(t, ps[5].Slot(), join(t, Config{Port: port}).Slot())
}

func TestPortsBetweenProcesses(t *testing.T) {
	port := testPort()
	p := join(t, Config{Port: port})
	c := newChild(t, port)
	c.do("bind %d 0.0.0.0 7471", verbs.PSTCP).expect("bound 7471")

	_, _, err := p.BindPort(verbs.PSTCP, any4, 7471)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	var busy *InUseError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, InUseError{Target{PortSpace: verbs.PSTCP, Port: 7471}, os.Geteuid(), c.cmd.Process.Pid}, *busy)
	require.ErrorContains(t, err, fmt.Sprintf("by process %d", c.cmd.Process.Pid))
	// One holder for all addresses and families.
	_, _, err = p.BindPort(verbs.PSTCP, netip.MustParseAddr("::1"), 7471)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	// Port spaces are apart.
	_, release, err := p.BindPort(verbs.PSUDP, any4, 7471)
	require.NoError(t, err)
	c.do("bind %d 0.0.0.0 7471", verbs.PSUDP)
	require.Contains(t, c.expect("err "), "in use")
	release()
	release() // once is enough, twice is no harm
	c.do("bind %d 0.0.0.0 7471", verbs.PSUDP).expect("bound 7471")

	c.do("release").expect("released")
	_, release, err = p.BindPort(verbs.PSTCP, any4, 7471)
	require.NoError(t, err)
	release()
	c.do("bind %d 0.0.0.0 7471", verbs.PSTCP).expect("bound 7471")
	c.kill()
	_, _, err = p.BindPort(verbs.PSTCP, any4, 7471)
	require.NoError(t, err, "freed by death")
}

func TestHandOver(t *testing.T) {
	port := testPort()
	in := make(inbox, 100)
	p := join(t, Config{Port: port, Received: in.received})
	a, b := newChild(t, port), newChild(t, port)
	b.do("bind %d 0.0.0.0 7471", verbs.PSTCP).expect("bound 7471")
	byPort := Target{PortSpace: verbs.PSTCP, Port: 7471}
	for i := range 1000 {
		pkt := testPacket(i)
		require.NoError(t, p.HandOver(Target{Slot: a.slot}, pkt))
		require.Equal(t, describe(pkt), a.expect("got "))
		require.NoError(t, p.HandOver(byPort, pkt))
		require.Equal(t, describe(pkt), b.expect("got "))
	}
	// And to us.
	a.do("send %d", p.Slot()).expect("sent <nil>")
	require.Equal(t, describe(testPacket(7)), in.take(t))
	require.Equal(t, Stats{HandedOver: 2000, Received: 1}, p.Stats())

	// Nobody there.
	free := uint8(1)
	for free == p.Slot() || free == a.slot || free == b.slot {
		free++
	}
	require.ErrorIs(t, p.HandOver(Target{Slot: free}, testPacket(1)), ErrUnclaimed)
	require.ErrorIs(t, p.HandOver(Target{PortSpace: verbs.PSUDP, Port: 7471}, testPacket(1)), ErrUnclaimed)
	require.ErrorIs(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: 7472}, testPacket(1)), ErrUnclaimed)

	// A port given up is nobody's, though its process lives; and may have another holder.
	b.do("release").expect("released")
	require.ErrorIs(t, p.HandOver(byPort, testPacket(1)), ErrUnclaimed)
	a.do("bind %d 0.0.0.0 7471", verbs.PSTCP).expect("bound 7471")
	require.NoError(t, p.HandOver(byPort, testPacket(3)))
	a.expect("got ")

	// A process that died.
	require.NoError(t, p.HandOver(Target{Slot: b.slot}, testPacket(1)))
	b.expect("got ")
	b.kill()
	require.ErrorIs(t, p.HandOver(Target{Slot: b.slot}, testPacket(1)), ErrUnclaimed)
	require.Zero(t, p.Stats().Dropped)

	// What does not fit.
	require.ErrorIs(t, p.HandOver(Target{Slot: a.slot}, &netio.Packet{}), ErrDropped)
	big := testPacket(1)
	big.Data = make([]byte, maxPacket+4)
	require.ErrorIs(t, p.HandOver(Target{Slot: a.slot}, big), ErrDropped)
	require.EqualValues(t, 2, p.Stats().Dropped)

	// What is ours is for us to do.
	require.ErrorIs(t, p.HandOver(Target{Slot: p.Slot()}, testPacket(1)), ErrOwn)
	n, _, err := p.BindPort(verbs.PSUDP, any4, 0)
	require.NoError(t, err)
	require.ErrorIs(t, p.HandOver(Target{PortSpace: verbs.PSUDP, Port: n}, testPacket(1)), ErrOwn)
}

// TestStopped has a process that does not read: nobody waits for it, and what fits its
// queue is there when it goes on.
func TestStopped(t *testing.T) {
	port := testPort()
	p := join(t, Config{Port: port})
	c, other := newChild(t, port), newChild(t, port)
	c.stop()
	begin := time.Now()
	sent := 0
	big := testPacket(999)
	for range 5000 {
		err := p.HandOver(Target{Slot: c.slot}, big)
		if err == nil {
			sent++
			continue
		}
		require.ErrorIs(t, err, ErrDropped)
	}
	require.Less(t, time.Since(begin), 2*time.Second)
	require.Positive(t, sent)
	require.Less(t, sent, 1000)
	require.EqualValues(t, 5000-sent, p.Stats().Dropped)
	// It has a port as well, which nobody connected to before.
	require.ErrorIs(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: 1}, big), ErrUnclaimed)
	// Others are not held up.
	require.NoError(t, p.HandOver(Target{Slot: other.slot}, big))
	other.expect("got ")
	c.signal(unix.SIGCONT)
	for range sent {
		require.Equal(t, describe(big), c.expect("got "))
	}
	require.NoError(t, p.HandOver(Target{Slot: c.slot}, testPacket(4)))
	require.Equal(t, describe(testPacket(4)), c.expect("got "))

	// One that stopped before anybody connected.
	late := newChild(t, port)
	late.do("bind %d 0.0.0.0 99", verbs.PSTCP).expect("bound 99")
	late.stop()
	begin = time.Now()
	require.NoError(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: 99}, big))
	_, _, err := p.BindPort(verbs.PSTCP, any4, 99)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	died := make(chan struct{})
	_, err = p.Watch(late.slot, func() { close(died) })
	require.NoError(t, err)
	require.Less(t, time.Since(begin), time.Second)
	late.kill() // without ever having accepted
	waitFor(t, died)
}

func waitFor(t *testing.T, died <-chan struct{}) {
	t.Helper()
	select {
	case <-died:
	case <-time.After(time.Second):
		t.Fatal("death was not noticed")
	}
}

func TestWatch(t *testing.T) {
	port := testPort()
	p := join(t, Config{Port: port})
	c := newChild(t, port)
	_, err := p.Watch(p.Slot(), func() {})
	require.ErrorIs(t, err, ErrOwn)
	before := fds(t)
	const n = 100
	var died [n]chan struct{}
	for i := range died {
		died[i] = make(chan struct{})
		_, err := p.Watch(c.slot, func() { close(died[i]) })
		require.NoError(t, err)
	}
	require.Equal(t, before+1, fds(t), "one connection for all")
	stop, err := p.Watch(c.slot, func() { t.Error("called after stop") })
	require.NoError(t, err)
	stop()
	stop()
	// Handing over takes the same connection.
	require.NoError(t, p.HandOver(Target{Slot: c.slot}, testPacket(1)))
	c.expect("got ")
	require.Equal(t, before+1, fds(t))
	select {
	case <-died[0]:
		t.Fatal("died too early")
	case <-time.After(20 * time.Millisecond):
	}
	c.kill()
	for i := range died {
		waitFor(t, died[i])
	}
	_, err = p.Watch(c.slot, func() {})
	require.ErrorIs(t, err, ErrUnclaimed)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.peers) == 0
	}, 5*time.Second, time.Millisecond)

	// Leaving is like dying, for those who stay.
	c = newChild(t, port)
	gone := make(chan struct{})
	_, err = p.Watch(c.slot, func() {
		_, _ = p.Watch(c.slot, func() {}) // from the callback
		close(gone)
	})
	require.NoError(t, err)
	c.do("close").expect("closed <nil>")
	waitFor(t, gone)

	// A send that finds the process dead does not keep the watchers from hearing of it.
	c = newChild(t, port)
	gone = make(chan struct{})
	_, err = p.Watch(c.slot, func() { close(gone) })
	require.NoError(t, err)
	c.kill()
	for !errors.Is(p.HandOver(Target{Slot: c.slot}, testPacket(1)), ErrUnclaimed) {
		runtime.Gosched()
	}
	waitFor(t, gone)

	// We leave: nobody died.
	c = newChild(t, port)
	q, err := Join(Config{Port: port})
	require.NoError(t, err)
	_, err = q.Watch(c.slot, func() { t.Error("called by our own Close") })
	require.NoError(t, err)
	require.NoError(t, q.Close())
	_, err = q.Watch(c.slot, func() {})
	require.ErrorIs(t, err, net.ErrClosed)
	_, _, err = q.BindPort(verbs.PSTCP, any4, 1)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, q.HandOver(Target{Slot: c.slot}, testPacket(1)), net.ErrClosed)
	require.NoError(t, q.Close())
}

// TestOtherUser has a process of another user take names, and connect to ours.
func TestOtherUser(t *testing.T) {
	needsRoot(t)
	port := testPort()
	s := start(t, squatterEnv+"=1", 65534)
	prefix := namePrefix(port, os.Geteuid())

	// All slots but one.
	left := 1 + rand.IntN(MaxSlot)
	for i := range MaxSlot {
		if i+1 != left {
			s.do("listen %sslot/%d", prefix, i+1).expect("listen done: <nil>")
		}
	}
	in := make(inbox, 10)
	p := join(t, Config{Port: port, Received: in.received})
	require.EqualValues(t, left, p.Slot())

	taken := Target{PortSpace: verbs.PSTCP, Port: 7471}
	s.do("listen %s", p.name(taken)).expect("listen done: <nil>")
	_, _, err := p.BindPort(taken.PortSpace, any4, taken.Port)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "by a process of uid 65534")
	require.ErrorIs(t, p.HandOver(taken, testPacket(1)), ErrForeign)
	other := Target{Slot: uint8(left%MaxSlot + 1)}
	require.ErrorIs(t, p.HandOver(other, testPacket(1)), ErrForeign)
	_, err = p.Watch(other.Slot, func() {})
	require.ErrorIs(t, err, ErrForeign)
	require.Equal(t, Stats{Dropped: 2, Foreign: 3}, p.Stats())

	// It connects to us, with a message that would be right.
	s.do("send %s", p.name(Target{Slot: p.Slot()})).expect("send done: <nil>")
	require.Eventually(t, func() bool { return p.Stats().Foreign == 4 }, 5*time.Second, time.Millisecond)
	require.Zero(t, p.Stats().Received)
	// We are still there for our own.
	fd, _, err := dial(p.name(Target{Slot: p.Slot()}))
	require.NoError(t, err)
	defer unix.Close(fd)
	var buf [maxLen]byte
	require.NoError(t, unix.Send(fd, buf[:encode(buf[:], testPacket(5))], 0))
	require.Equal(t, describe(testPacket(5)), in.take(t))
	require.Empty(t, in)
}

// TestBadMessages sends what no process of ours would.
func TestBadMessages(t *testing.T) {
	in := make(inbox, 10)
	p := join(t, Config{Port: testPort(), Received: in.received})
	fd, _, err := dial(p.name(Target{Slot: p.Slot()}))
	require.NoError(t, err)
	defer unix.Close(fd)
	var buf [maxLen + 100]byte
	good := buf[:encode(buf[:], testPacket(5))]
	bad := [][]byte{
		{0},
		good[:headerLen],
		good[:headerLen+minPacket-1],
		buf[:maxLen+1],
		buf[:],
		append([]byte{version + 1}, good[1:]...),
		append([]byte{version, 9}, good[2:]...),
		append([]byte{version, kindPacket, 5}, good[3:]...),
	}
	for _, m := range bad {
		require.NoError(t, unix.Send(fd, m, 0))
	}
	require.NoError(t, unix.Send(fd, good, 0))
	require.Equal(t, describe(testPacket(5)), in.take(t))
	require.Empty(t, in)
	require.Equal(t, Stats{Received: 1, Malformed: uint64(len(bad))}, p.Stats())
}

// TestManyPorts connects to more ports than connections are kept for.
func TestManyPorts(t *testing.T) {
	port := testPort()
	p := join(t, Config{Port: port})
	c := newChild(t, port)
	before := fds(t)
	var ports []uint16
	for range maxPortPeers + 30 {
		c.do("bind %d 0.0.0.0 0", verbs.PSTCP)
		var n uint16
		require.True(t, scan(c.expect("bound "), "%d", &n))
		ports = append(ports, n)
	}
	for range 2 {
		for _, n := range ports {
			require.NoError(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: n}, testPacket(int(n))))
			require.Equal(t, describe(testPacket(int(n))), c.expect("got "))
		}
	}
	require.Equal(t, before+maxPortPeers, fds(t))
}

func TestNoDescriptorsLeft(t *testing.T) {
	var lim, low unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &lim))
	port := testPort()
	in := make(inbox, 10)
	short := make(chan error, 1000)
	p := join(t, Config{Port: port, Received: in.received, Short: func(err error) { short <- err }})
	c := newChild(t, port)
	n := fds(t)
	low = lim
	low.Cur = uint64(n)
	// What is open stays so: one more cannot be had.
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	restore := sync.OnceFunc(func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)) })
	defer restore()
	var files []*os.File
	for {
		f, err := os.Open("/dev/null")
		if err != nil {
			break
		}
		files = append(files, f)
	}
	require.ErrorIs(t, p.HandOver(Target{Slot: c.slot}, testPacket(1)), ErrDropped)
	require.ErrorIs(t, <-short, syscall.EMFILE)
	_, err := p.Watch(c.slot, func() {})
	require.ErrorIs(t, err, ErrDropped)
	require.ErrorIs(t, <-short, syscall.EMFILE)
	_, _, err = p.BindPort(verbs.PSTCP, any4, 1)
	require.ErrorIs(t, err, syscall.EMFILE)
	require.Empty(t, short)
	// A message to us waits until we can accept again.
	c.do("send %d", p.Slot()).expect("sent <nil>")
	select {
	case <-in:
		t.Fatal("without a descriptor?")
	case <-time.After(100 * time.Millisecond):
	}
	require.ErrorIs(t, <-short, syscall.EMFILE)
	restore()
	for _, f := range files {
		f.Close()
	}
	require.Equal(t, describe(testPacket(7)), in.take(t))
}

func TestLeaks(t *testing.T) {
	port := testPort()
	c := newChild(t, port)
	c.do("bind %d 0.0.0.0 7471", verbs.PSTCP).expect("bound 7471")
	before := fds(t)
	goroutines := runtime.NumGoroutine()
	for range 50 {
		p, err := Join(Config{Port: port, Received: func(*netio.Packet) {}})
		require.NoError(t, err)
		for _, a := range []string{"127.0.0.1", "127.0.0.2", "::"} {
			_, _, err = p.BindPort(verbs.PSTCP, netip.MustParseAddr(a), 80)
			require.NoError(t, err)
		}
		_, release, err := p.BindPort(verbs.PSUDP, any4, 80)
		require.NoError(t, err)
		release()
		_, _, err = p.BindPort(verbs.PSTCP, any4, 7471)
		require.Error(t, err)
		require.NoError(t, p.HandOver(Target{Slot: c.slot}, testPacket(1)))
		require.NoError(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: 7471}, testPacket(1)))
		_, err = p.Watch(c.slot, func() {})
		require.NoError(t, err)
		c.do("send %d", p.Slot())
		for range 3 {
			<-c.lines
		}
		require.NoError(t, p.Close())
	}
	require.Equal(t, before, fds(t))
	// One that is done may need a moment to go.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
}

// TestConcurrent uses everything at once, while the others come and go.
func TestConcurrent(t *testing.T) {
	port := testPort()
	p := join(t, Config{Port: port, Received: func(*netio.Packet) {}})
	var wg sync.WaitGroup
	slots := make(chan uint8, 100)
	for range 3 {
		wg.Go(func() {
			for range 40 {
				q, err := Join(Config{Port: port, Received: func(*netio.Packet) {}})
				if err != nil {
					t.Error(err)
					return
				}
				if _, _, err := q.BindPort(verbs.PSTCP, any4, 0); err != nil {
					t.Error(err)
				}
				for range 3 {
					slots <- q.Slot()
				}
				if err := q.HandOver(Target{Slot: p.Slot()}, testPacket(1)); err != nil {
					t.Error(err)
				}
				q.Close()
			}
		})
	}
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for slot := range slots {
				stop, err := p.Watch(slot, func() {})
				if err == nil && slot%2 == 0 {
					stop()
				}
				err = p.HandOver(Target{Slot: slot}, testPacket(2))
				if err != nil && !errors.Is(err, ErrUnclaimed) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(slots)
	workers.Wait()
}

func TestNoAllocation(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	port := testPort()
	got := make(chan struct{}, 1)
	q := join(t, Config{Port: port, Received: func(*netio.Packet) { got <- struct{}{} }})
	p := join(t, Config{Port: port})
	pkt := testPacket(100)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if err := p.HandOver(Target{Slot: q.Slot()}, pkt); err != nil {
			t.Fatal(err)
		}
		<-got
	}))
}

func TestDefaultPort(t *testing.T) {
	p := join(t, Config{})
	require.Contains(t, p.name(Target{Slot: 1}), "/4791/")
}

func BenchmarkHandOver(b *testing.B) {
	port := testPort()
	got := make(chan struct{}, 1000)
	q := join(b, Config{Port: port, Received: func(*netio.Packet) { got <- struct{}{} }})
	p := join(b, Config{Port: port})
	pkt := testPacket(999)
	b.SetBytes(int64(len(pkt.Data)))
	for b.Loop() {
		if err := p.HandOver(Target{Slot: q.Slot()}, pkt); err != nil {
			b.Fatal(err)
		}
		<-got
	}
}
