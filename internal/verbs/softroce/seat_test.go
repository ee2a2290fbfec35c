package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestSeat: who sits attends to the network, unless somebody spins, and for a short while afterwards nobody does if nobody else wants
// to be told.
func TestSeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		require.Nil(t, p.end.cq.(*cq).Seat(), "there is no place at this network")
		dev, net := p.end.dev, &quietNet{stand: make(chan struct{}, 1)}
		dev.spins.net = net
		q := p.end.cq.(*cq)
		seat := q.Seat()
		refs := dev.refs.Load()
		defer func() { require.Equal(t, refs, dev.refs.Load()) }()

		require.True(t, seat.Take())
		require.False(t, seat.Take(), "taken")
		require.NoError(t, q.Arm())
		require.Equal(t, netio.BySitter, net.is(), "also of what is armed")
		dev.spins.begin(dev.now())
		require.Equal(t, netio.ByNobody, net.is())
		dev.spins.end(dev, false)
		require.Equal(t, netio.BySitter, net.is())
		time.Sleep(time.Hour)
		require.Equal(t, netio.BySitter, net.is())
		dev.seat.tell([]*cq{q})
		require.False(t, dev.spins.timed, "nothing is to be seen to while one sits")
		seat.Leave()
		require.Equal(t, netio.ByOwn, net.is(), "armed")

		p.end.recv(verbs.RecvWR{})
		p.send(packet(wire.RCSendOnly, peerPSN, nil))
		synctest.Wait() // disarms
		for range 2 {
			require.True(t, seat.Take())
			dev.seat.tell([]*cq{q})
			seat.Leave()
		}
		require.Equal(t, netio.BySitter, net.is(), "it came back at once")
		time.Sleep(2 * restTime)
		require.Equal(t, netio.ByOwn, net.is(), "and is not waited for for ever")

		// The waiter of a connection, which is called away.
		w := verbs.NewWaiter()
		require.True(t, seat.Take())
		woken := make(chan error)
		go func() { woken <- w.WaitAt(&seat) }()
		synctest.Wait()
		w.SetDeadline(time.Now().Add(time.Second))
		require.Error(t, <-woken)
		require.Error(t, w.Err())
		require.False(t, dev.seat.taken.Load(), "it was given back")
	})
}

// TestSeatOfACrowd: where others are told most of what comes, or who sits is called away, few sit, and again all once that is over.
func TestSeatOfACrowd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		dev := p.end.dev
		dev.spins.net = &quietNet{}
		self, other := p.end.cq.(*cq), new(cq)
		seat := self.Seat()
		dev.seat.skips.Store(0)
		sit := func(told ...*cq) (n int) {
			for range 640 {
				if seat.Take() {
					n++
					seat.Sit(func() bool { return true })
					dev.seat.tell(told)
					seat.Leave()
				}
			}
			return n
		}
		require.Equal(t, 640, sit(self), "told itself")
		require.Equal(t, 640, sit(self, self, self), "and nobody else")
		for _, told := range [][]*cq{{other}, {self, other}, nil} {
			crowd := sit(told...)
			require.Less(t, crowd, 20)
			require.Greater(t, crowd, 9)
			sit(self)
			require.Equal(t, 640, sit(self))
		}
		n := 0
		for i := range 640 {
			if seat.Take() {
				n++
				seat.Sit(func() bool { return true })
				dev.seat.tell([]*cq{self}[:i%2])
				seat.Leave()
			}
		}
		require.Less(t, n, 40, "called away every other time")

		// Who finds what it waits for before it sits down has not been called away.
		sit(self)
		for range 640 {
			require.True(t, seat.Take())
			seat.Leave()
		}
		require.Equal(t, 640, sit(self))
	})
}

// TestSeatHolds: what is held is sent soon though the one who sat does nothing.
func TestSeatHolds(t *testing.T) {
	for name, others := range map[string]bool{"alone": false, "while others want to be told": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := newHolder(t, link{})
				dev := h.end.dev
				if others {
					other, err := dev.CreateCQ(&verbs.CQAttr{Depth: 1})
					require.NoError(t, err)
					require.NoError(t, other.Arm())
					defer other.Close()
				}
				seat := h.end.cq.(*cq).Seat()
				for range 2 {
					require.True(t, seat.Take())
					dev.seat.tell([]*cq{h.end.cq.(*cq)})
					seat.Leave()
				}
				require.True(t, seat.Take())
				require.Empty(t, h.message())
				seat.Leave()
				time.Sleep(2 * restTime)
				acks := h.take()
				require.Len(t, acks, 1)
				requireAck(t, h, &acks[0])
			})
		})
	}
}
