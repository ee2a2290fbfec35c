package netio

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// seated is a receiver where somebody can sit, and a sender.
type seated struct {
	*testing.T
	h    *countingHandler
	rx   *UDP
	send func()

	send6 func() // to another socket
}

func newSeated(t *testing.T) *seated {
	h := &countingHandler{}
	port := freePort(t)
	rx := listen(t, Config{Port: port, Handler: h, SourcePorts: 1})
	tx := listen(t, Config{Port: freePort(t), RemotePort: port, Handler: newSink(), SourcePorts: 1})
	from := func(local netip.Addr) func() {
		path := &Path{Local: local, Remote: local}
		return func() {
			b := NewTxBatch()
			hdr := b.Add(path, 12)
			hdr[0] = 4
			b.Payload(make([]byte, 64))
			require.NoError(t, tx.Send(b))
		}
	}
	return &seated{t, h, rx, from(addr("127.0.0.1")), from(addr("::1"))}
}

// got says whether n packets have arrived, as a condition to sit for.
func (s *seated) got(n int64) func() bool { return func() bool { return s.h.n.Load() >= n } }

func (s *seated) arrived(n int64) {
	s.Helper()
	require.Eventually(s, s.got(n), 5*time.Second, time.Millisecond)
}

// TestSit: who sits reads what comes, and gets up when it has what it waits for, or when it is told to.
func TestSit(t *testing.T) {
	s := newSeated(t)
	s.rx.Attend(BySitter)
	s.rx.Sit(func() bool { return false }) // no socket had traffic yet: there is nowhere to sit
	s.send()
	s.arrived(1)

	sit := func(done func() bool) chan struct{} {
		up := make(chan struct{})
		go func() {
			defer close(up)
			s.rx.Sit(done)
		}()
		return up
	}
	for n := int64(2); n < 40; n += 3 {
		s.rx.Attend(BySitter)
		up := sit(s.got(n + 1))
		time.Sleep(time.Millisecond)
		s.rx.Stand() // in vain
		s.send()
		s.arrived(n)
		time.Sleep(time.Millisecond)
		select {
		case <-up:
			t.Fatal("up already")
		default:
		}
		s.send()
		<-up
		require.Equal(t, n+1, s.h.n.Load())
		s.send() // nobody reads it
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, n+1, s.h.n.Load(), "taken by the goroutine")
		if n%2 == 0 {
			s.rx.Attend(ByOwn)
			s.arrived(n + 2)
		} else {
			<-sit(s.got(n + 2))
		}
	}

	// Told to, for another reason than packets.
	for range 20 {
		var enough atomic.Bool
		s.rx.Attend(BySitter)
		up := sit(enough.Load)
		time.Sleep(200 * time.Microsecond)
		enough.Store(true)
		s.rx.Stand()
		<-up
	}
	s.rx.Stand() // nobody sits

	// Until the end.
	s.rx.Attend(BySitter)
	up := sit(func() bool { return false })
	time.Sleep(time.Millisecond)
	require.NoError(t, s.rx.Close())
	<-up
	s.rx.Sit(func() bool { return false })
	s.rx.Attend(ByOwn)
}

// TestSitOften: no call of Stand and no packet is missed, whatever comes when.
func TestSitOften(t *testing.T) {
	s := newSeated(t)
	s.send()
	s.arrived(1)
	var wanted, said atomic.Int64
	go func() {
		for i := int64(1); i <= 1000; i++ {
			for said.Load() < i {
				time.Sleep(time.Microsecond)
			}
			if i%2 == 0 {
				s.send()
			} else {
				wanted.Store(i)
				s.rx.Stand()
			}
		}
	}()
	for i := int64(1); i <= 1000; i++ {
		before := s.h.n.Load()
		s.rx.Attend(BySitter)
		said.Store(i)
		s.rx.Sit(func() bool {
			return i%2 == 0 && s.h.n.Load() > before || i%2 != 0 && wanted.Load() >= i
		})
		if i%5 == 0 {
			s.rx.Attend(ByNobody)
		}
	}
}

func TestSitAllocates(t *testing.T) {
	s := newSeated(t)
	s.send()
	s.arrived(1)
	n := int64(1)
	done := func() bool { return s.h.n.Load() >= n }
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s.rx.Attend(BySitter)
		s.rx.Sit(done)
		s.rx.Attend(ByNobody)
	}))
}

// TestSitFollowsTraffic: who sits reads another socket, too, once that is the one with the traffic, and one seat serves all.
func TestSitFollowsTraffic(t *testing.T) {
	s := newSeated(t)
	s.send()
	s.arrived(1)
	for n := int64(1); n < 20; n += 2 {
		send := s.send
		if n%4 == 1 {
			send = s.send6
		}
		s.rx.Attend(BySitter)
		at := s.rx.seated()
		up := make(chan struct{})
		go func() {
			defer close(up)
			s.rx.Sit(s.got(n + 2))
		}()
		time.Sleep(time.Millisecond)
		send() // which the socket's own goroutine takes
		s.arrived(n + 1)
		s.rx.Attend(ByNobody) // somebody spins for a moment
		s.rx.Attend(BySitter)
		require.NotSame(t, at, s.rx.seated())
		send()
		select {
		case <-up:
		case <-time.After(5 * time.Second):
			t.Fatal("the packet stays in the socket")
		}
	}
	require.NotNil(t, s.rx.seat.f)

	// A socket that is closed is no place to sit.
	at := s.rx.seated()
	up := make(chan struct{})
	go func() {
		defer close(up)
		s.rx.Sit(func() bool { return false })
	}()
	time.Sleep(time.Millisecond)
	at.close()
	<-up
	require.Nil(t, s.rx.seated())
	s.rx.Attend(ByNobody)
	s.rx.Attend(BySitter)
	require.Nil(t, s.rx.seated())
	s.rx.Attend(ByOwn)
}
