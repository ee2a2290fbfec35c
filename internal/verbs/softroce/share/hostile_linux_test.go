package share

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// squat takes a name of the user's own, as no process of ours does: what comes there is the test's to handle.
func squat(t *testing.T, typ int, name string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: name}))
	if typ != unix.SOCK_DGRAM {
		require.NoError(t, unix.Listen(fd, 1))
	}
	return fd
}

// otherSlot is one that nobody has.
func otherSlot(p *Process) uint8 { return p.Slot()%MaxSlot + 1 }

// TestDescriptorsNotAskedFor come with messages and go nowhere.
func TestDescriptorsNotAskedFor(t *testing.T) {
	in := make(inbox, 1000)
	p := join(t, Config{Port: testPort(), Received: in.received})
	fd, _, err := dial(p.name(Target{Slot: p.Slot()}))
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetNonblock(fd, false))
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	var buf [maxLen]byte
	good := buf[:encode(buf[:], testPacket(5))]
	require.NoError(t, unix.Send(fd, good, 0))
	in.take(t)
	before := fds(t)
	n := int(null.Fd())
	for range 100 {
		require.NoError(t, unix.Sendmsg(fd, good, unix.UnixRights(n, n, n), nil, 0))
		require.Equal(t, describe(testPacket(5)), in.take(t))
		require.NoError(t, unix.Sendmsg(fd, []byte{1}, unix.UnixRights(n), nil, 0))
	}
	// A peer's answers, which there are none of, are dropped the same way.
	s := squat(t, unix.SOCK_SEQPACKET, p.name(Target{Slot: otherSlot(p)}))
	require.NoError(t, p.HandOver(Target{Slot: otherSlot(p)}, testPacket(1)))
	c, _, err := unix.Accept(s)
	require.NoError(t, err)
	defer unix.Close(c)
	before += 2
	for range 100 {
		require.NoError(t, unix.Sendmsg(c, []byte("unasked"), unix.UnixRights(n, n), nil, 0))
	}
	require.Eventually(t, func() bool { return p.Stats().Malformed == 100 }, 5*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return fds(t) == before+1 }, 5*time.Second, time.Millisecond)
}

// TestReplays: a message that comes again is a packet that comes again. What is cut short, or empty, is none.
func TestReplays(t *testing.T) {
	in := make(inbox, 1000)
	p := join(t, Config{Port: testPort(), Received: in.received})
	fd, _, err := dial(p.name(Target{Slot: p.Slot()}))
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.SetNonblock(fd, false))
	var buf [maxLen]byte
	good := buf[:encode(buf[:], testPacket(300))]
	for range 500 {
		require.NoError(t, unix.Send(fd, good, 0))
	}
	for range 500 {
		require.Equal(t, describe(testPacket(300)), in.take(t))
	}
	bad := 0
	for n := 1; n < headerLen+minPacket; n++ {
		require.NoError(t, unix.Send(fd, good[:n], 0))
		bad++
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		junk := make([]byte, 1+r.IntN(maxLen))
		for i := range junk {
			junk[i] = byte(r.Uint32())
		}
		junk[0] = version + 1
		require.NoError(t, unix.Send(fd, junk, 0))
		bad++
	}
	require.NoError(t, unix.Send(fd, good, 0))
	require.Equal(t, describe(testPacket(300)), in.take(t))
	require.Equal(t, Stats{Received: 501, Malformed: uint64(bad)}, p.Stats())
	// An empty message is the end of a connection, to whoever reads it.
	require.NoError(t, unix.Send(fd, nil, 0))
	var b [1]byte
	_, err = unix.Read(fd, b[:])
	require.True(t, err == nil || errors.Is(err, unix.ECONNRESET), "%v", err)
}

// TestSilentConnections: a process that connects again and again, and says nothing, gets a few connections.
func TestSilentConnections(t *testing.T) {
	in := make(inbox, 100)
	port := testPort()
	p := join(t, Config{Port: port, Received: in.received})
	c := newChild(t, port)
	before := fds(t)
	var mine []int
	for range 4 * maxConns {
		fd, _, err := dial(p.name(Target{Slot: p.Slot()}))
		require.NoError(t, err)
		mine = append(mine, fd)
	}
	require.Eventually(t, func() bool { return p.Stats().Refused == 3*maxConns }, 5*time.Second, time.Millisecond)
	require.LessOrEqual(t, fds(t), before+len(mine)+maxConns)
	// Others have theirs.
	c.do("send %d", p.Slot()).expect("sent <nil>")
	require.Equal(t, describe(testPacket(7)), in.take(t))
	// What this process hands over meanwhile is lost, which is not the same as nobody's: that draws a refusal.
	mute := join(t, Config{Port: port})
	for range 50 {
		require.NotErrorIs(t, mute.HandOver(Target{Slot: p.Slot()}, testPacket(6)), ErrUnclaimed)
	}
	require.NoError(t, mute.Close())
	for _, fd := range mine {
		unix.Close(fd)
	}
	require.Eventually(t, func() bool { return fds(t) <= before+1 }, 5*time.Second, time.Millisecond)
	for len(in) > 0 {
		<-in // what came before its connection was refused
	}
	// It may come again.
	q := join(t, Config{Port: port})
	require.NoError(t, q.HandOver(Target{Slot: p.Slot()}, testPacket(5)))
	require.Equal(t, describe(testPacket(5)), in.take(t))
}

// TestSquattedByTheSameUser: a name of ours behind which there is something else costs nobody more than the
// packets for it, and no time.
func TestSquattedByTheSameUser(t *testing.T) {
	soon := func(t *testing.T, f func()) {
		t.Helper()
		begin := time.Now()
		f()
		require.Less(t, time.Since(begin), 5*time.Second)
	}
	t.Run("silent", func(t *testing.T) {
		p := join(t, Config{Port: testPort()})
		to := Target{Slot: otherSlot(p)}
		squat(t, unix.SOCK_SEQPACKET, p.name(to))
		soon(t, func() {
			var err error
			n := 0
			for ; err == nil && n < 10000; n++ {
				err = p.HandOver(to, testPacket(999))
			}
			require.ErrorIs(t, err, ErrDropped)
			require.Positive(t, n)
			stop, err := p.Watch(to.Slot, func() { t.Error("died") })
			require.NoError(t, err)
			stop()
		})
	})
	t.Run("full", func(t *testing.T) {
		// Nobody accepts, and the queue of connections is full.
		p := join(t, Config{Port: testPort()})
		to := Target{Slot: otherSlot(p)}
		squat(t, unix.SOCK_SEQPACKET, p.name(to))
		var err error
		for range 10 {
			var fd int
			if fd, _, err = dial(p.name(to)); err != nil {
				break
			}
			defer unix.Close(fd)
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
		soon(t, func() {
			require.ErrorIs(t, p.HandOver(to, testPacket(1)), ErrDropped)
			_, err = p.Watch(to.Slot, func() {})
			require.ErrorIs(t, err, ErrDropped)
		})
		_, _, err = p.BindPort(verbs.PSTCP, any4, 1)
		require.NoError(t, err)
	})
	t.Run("hanging up", func(t *testing.T) {
		p := join(t, Config{Port: testPort()})
		to := Target{Slot: otherSlot(p)}
		s := squat(t, unix.SOCK_SEQPACKET, p.name(to))
		var accepting sync.WaitGroup
		accepting.Go(func() {
			for {
				c, _, err := unix.Accept(s)
				if err != nil {
					return
				}
				unix.Close(c)
			}
		})
		t.Cleanup(func() {
			unix.Shutdown(s, unix.SHUT_RDWR)
			accepting.Wait() // before s is closed, and may be another's
		})
		died := make(chan struct{}, 1000)
		soon(t, func() {
			watched := 0
			for range 200 {
				_ = p.HandOver(to, testPacket(1)) // lost, or unclaimed
				if _, err := p.Watch(to.Slot, func() { died <- struct{}{} }); err == nil {
					watched++
				} else {
					require.ErrorIs(t, err, ErrUnclaimed)
				}
			}
			for range watched {
				<-died
			}
		})
	})
	t.Run("talking", func(t *testing.T) {
		p := join(t, Config{Port: testPort()})
		to := Target{Slot: otherSlot(p)}
		s := squat(t, unix.SOCK_SEQPACKET, p.name(to))
		_, err := p.Watch(to.Slot, func() {})
		require.NoError(t, err)
		c, _, err := unix.Accept(s)
		require.NoError(t, err)
		defer unix.Close(c)
		for range 1000 {
			require.NoError(t, unix.Send(c, make([]byte, 9000), 0))
		}
		require.NoError(t, p.HandOver(to, testPacket(1)))
		require.Zero(t, p.Stats().Malformed+p.Stats().Received, "nothing is taken from that end")
	})
	t.Run("other types of sockets", func(t *testing.T) {
		p := join(t, Config{Port: testPort()})
		to := Target{Slot: otherSlot(p)}
		squat(t, unix.SOCK_DGRAM, p.name(to))
		squat(t, unix.SOCK_STREAM, p.name(Target{PortSpace: verbs.PSTCP, Port: 5}))
		soon(t, func() {
			require.Error(t, p.HandOver(to, testPacket(1)))
			require.Error(t, p.HandOver(Target{PortSpace: verbs.PSTCP, Port: 5}, testPacket(1)))
			_, err := p.Watch(to.Slot, func() {})
			require.Error(t, err)
		})
	})
}

// TestAllSlotsSquatted: whoever finds no slot because of another user hears of that user.
func TestAllSlotsSquatted(t *testing.T) {
	needsRoot(t)
	port := testPort()
	s := start(t, squatterEnv+"=1", 65534)
	for i := range MaxSlot {
		s.do("listen %sslot/%d", namePrefix(port, os.Geteuid()), i+1).expect("listen done: <nil>")
	}
	_, err := Join(Config{Port: port})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, fmt.Sprintf("%d of them by others than this user (uid 65534)", MaxSlot))
}
