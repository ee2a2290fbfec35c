package softroce

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// quietNet remembers who shall attend to it. Who sits waits until it shall stand.
type quietNet struct {
	mu      sync.Mutex
	who     netio.Attention
	changes int
	stand   chan struct{}
}

func (n *quietNet) Attend(who netio.Attention) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.who != who {
		n.who = who
		n.changes++
	}
}

func (n *quietNet) Yield() {}

func (n *quietNet) Sit(done func() bool) {
	for !done() {
		<-n.stand
	}
}

func (n *quietNet) Stand() { n.stand <- struct{}{} }

func (n *quietNet) is() netio.Attention {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.who
}

func (n *quietNet) on() bool { return n.is() != netio.ByOwn }

// TestSpin: while consumers spin the network is quiet, and at once no longer when one of them wants to be told.
func TestSpin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		dev, net := p.end.dev, &quietNet{}
		dev.spins.net = net
		q := p.end.cq.(*cq)
		wcs := make([]verbs.WC, 4)
		look := func(spin time.Duration, arm bool, want int) {
			t.Helper()
			n, armed, err := q.PollOrArm(wcs, spin, arm)
			require.NoError(t, err)
			require.Equal(t, want, n)
			require.Equal(t, arm && n == 0, armed)
		}
		psn := uint32(peerPSN)
		arrive := func() {
			p.end.recv(verbs.RecvWR{})
			p.send(packet(wire.RCSendOnly, psn, nil))
			synctest.Wait()
			psn++
		}
		found := func() {
			t.Helper()
			dev.spins.begin(dev.now())
			require.True(t, net.on())
			arrive()
			n, err := q.take(wcs)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			dev.spins.end(dev, false)
		}

		look(0, false, 0)
		require.Zero(t, net.changes, "no spin")
		time.Sleep(time.Second)
		found()
		require.False(t, net.on(), "who spins for the first time in long may not come again")
		found()
		require.True(t, net.on(), "who came again at once will do so once more")
		time.Sleep(restTime / 2)
		require.True(t, net.on())
		time.Sleep(restTime)
		require.False(t, net.on(), "but is not waited for for ever")

		look(time.Second, false, 0)
		require.True(t, net.on(), "neither told nor about to be: it will go on")
		look(time.Second, true, 0)
		require.False(t, net.on(), "armed")
		arrive()
		look(time.Second, true, 1)
		changes := net.changes
		for range 100 {
			found()
			time.Sleep(restTime / 50)
		}
		require.LessOrEqual(t, net.changes, changes+1, "nobody wants to be told: it stays quiet")
		require.NoError(t, q.Arm())
		require.False(t, net.on())

		other, err := dev.CreateCQ(&verbs.CQAttr{Depth: 1})
		require.NoError(t, err)
		require.NoError(t, other.Arm())
		require.NoError(t, other.Arm())
		arrive() // disarms the first
		look(0, false, 1)
		found()
		found()
		require.False(t, net.on(), "the other one is armed")
		require.EqualValues(t, 1, dev.spins.armed.Load())
		require.NoError(t, other.Close())
		require.Zero(t, dev.spins.armed.Load())
		found()
		require.True(t, net.on())

		// Two at once: the last one decides.
		time.Sleep(time.Second)
		dev.spins.begin(dev.now())
		dev.spins.begin(dev.now())
		dev.spins.end(dev, false)
		time.Sleep(2 * restTime)
		require.True(t, net.on())
		dev.spins.end(dev, false)
		require.False(t, net.on())
		require.Zero(t, dev.spins.n)
	})
}

// TestSpinLetsTheNetworkRun: a network that consumers cannot read delivers during a spin, which ends where time stands still.
func TestSpinLetsTheNetworkRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		wcs := make([]verbs.WC, 4)
		n, armed, err := p.end.cq.(*cq).PollOrArm(wcs, time.Hour, true)
		require.NoError(t, err)
		require.Zero(t, n)
		require.True(t, armed)
	})
}

// pollNet is a network where a call of Poll does something.
type pollNet struct {
	netio.Conn
	poll func() int
}

func (n *pollNet) Poll() int { return n.poll() }

// TestSpinLetsRunWhomItHasWoken: what a spin finds for others wakes them, and they run before it is over, though there is only
// one processor for them.
func TestSpinLetsRunWhomItHasWoken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		dev := p.end.dev
		var told atomic.Bool
		made, err := dev.CreateCQ(&verbs.CQAttr{Depth: 1, Notify: func() { told.Store(true) }})
		require.NoError(t, err)
		other := made.(*cq)
		require.NoError(t, other.Arm())
		synctest.Wait()

		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		net, polls := dev.conn, 0
		dev.spins.net = &quietNet{}
		dev.conn = &pollNet{net, func() int {
			if polls++; polls == 1 {
				w := dev.begin()
				other.push(w, &verbs.WC{})
				w.end(true)
				return 1
			}
			return 0
		}}
		n, err := p.end.cq.(*cq).spin(make([]verbs.WC, 1), int64(spinStep), false)
		require.NoError(t, err)
		require.Zero(t, n)
		require.True(t, told.Load())
		dev.conn = net
		require.NoError(t, other.Close())
	})
}
