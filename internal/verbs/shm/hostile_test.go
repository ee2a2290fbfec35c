//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// attack writes garbage into all that two processes share, from the side of d: its own segments, which the victim reads,
// and the victim's, as d has them mapped.
func attack(r *rand.Rand, d *device, rings [][]byte, stop <-chan struct{}) {
	own, his := d.board, d.link.board.Load().mem
	boardWord := func() int {
		if r.IntN(4) == 0 {
			return armOff + r.IntN(8)*armStride
		}
		return regOff + r.IntN(16)*regStride + 8*r.IntN(7)
	}
	for !stopped(stop) {
		for range 64 {
			switch r.IntN(4) {
			case 0:
				word64(own, boardWord()).Store(garbage(r))
			case 1:
				word64(his, boardWord()).Store(garbage(r))
			default:
				garble(r, rings[r.IntN(len(rings))])
			}
		}
	}
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// garble writes garbage into a word of a ring.
func garble(r *rand.Rand, ring []byte) {
	off := []int{ringTail, ringHead, ringState, ringFail, ringWaits}[r.IntN(5)]
	if r.IntN(2) == 0 {
		off = ringSlots + 8*r.IntN((len(ring)-ringSlots)/8)
	}
	word64(ring, off).Store(garbage(r))
}

// garbage is a word that may make sense.
func garbage(r *rand.Rand) uint64 {
	switch r.IntN(6) {
	case 0:
		return 0
	case 1:
		return uint64(r.IntN(200))
	case 2:
		return ^uint64(r.IntN(200))
	case 3:
		return 1 << r.IntN(64)
	case 4:
		return uint64(r.IntN(8))<<32 | uint64(r.IntN(4)) // a segment and a domain, or a receive that somebody has
	}
	return r.Uint64()
}

// ringsOf are the rings that a queue pair and its peer's lie in. The peer may close its own at any time.
func ringsOf(q *qp) [][]byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	rings := [][]byte{q.rq.block.mem}
	if q.remote != nil {
		rings = append(rings, q.remote.ring.mem)
	}
	return rings
}

// use does all that a consumer may do, for a time, and takes what comes of it.
func use(r *rand.Rand, s *side, region func() (addr uint64, key uint32), end time.Time) {
	var wcs [16]verbs.WC
	ops := []verbs.Opcode{
		verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead,
		verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpAtomicWrite, verbs.OpFlush,
	}
	for time.Now().Before(end) {
		n := uint32(r.IntN(4096))
		addr, key := region()
		wr := verbs.SendWR{
			Op: ops[r.IntN(len(ops))], Flags: verbs.Signaled, RemoteAddr: addr + uint64(r.IntN(sideMemory-4096)), RKey: key,
		}
		if wr.Op >= verbs.OpCompareSwap && wr.Op != verbs.OpFlush {
			n = 8
			wr.RemoteAddr &^= 7
		}
		if wr.Op == verbs.OpFlush {
			wr.FlushLength, wr.FlushType = n, verbs.FlushGlobal<<r.IntN(2)
		} else {
			wr.SGL = []verbs.SGE{{Addr: s.mr.Addr(), Length: n, LKey: s.mr.LKey()}}
		}
		_, _ = s.qp.PostSend([]verbs.SendWR{wr})
		_, _ = s.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: s.mr.Addr() + uint64(r.IntN(60000)), Length: 4096, LKey: s.mr.LKey()}}}})
		_, _, _ = s.cq.(verbs.ArmPoller).PollOrArm(wcs[:], time.Microsecond, r.IntN(2) == 0)
		_, _ = s.cq.Poll(wcs[:])
	}
}

func regionOf(m verbs.MR) func() (addr uint64, key uint32) {
	return func() (uint64, uint32) { return m.Addr(), m.RKey() }
}

func long() bool { return os.Getenv("RDMA_LONG") != "" }

// TestHostilePeer lets one end of a link write garbage while the other works. Nothing but that link suffers: no crash, no
// call that does not return, nothing kept once the hostile end is gone, and another connection goes on.
func TestHostilePeer(t *testing.T) {
	_, fds := held(t)
	rounds := 30
	if long() {
		rounds = 2000
	}
	victim, friend := New(), New()
	x, y := connected(t, victim, friend)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		enemy := New()
		var a, b *side // the victim's, and the enemy's
		if round%2 == 0 {
			a, b = connected(t, victim, enemy)
		} else {
			b, a = connected(t, enemy, victim)
		}
		d := b.qp.(*qp).dev
		rings := ringsOf(b.qp.(*qp))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { attack(r, d, rings, stop) })
		end := time.Now().Add(20 * time.Millisecond)
		wg.Go(func() { use(rand.New(rand.NewPCG(seed, ^uint64(round))), a, regionOf(b.mr), end) })
		use(rand.New(rand.NewPCG(seed, 1<<63|uint64(round))), b, regionOf(a.mr), end)
		begin := time.Now()
		if round%3 == 0 {
			_ = a.id.Disconnect()
		}
		closed, err := a.close() // while it goes on
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 10*time.Second)
		close(stop)
		wg.Wait()
		_, err = b.close()
		require.NoError(t, err)
		if d.link.active {
			d.link.close() // the process ends
		} else {
			a.qp.(*qp).dev.link.close()
		}
		if closed { // the region was busy: it is not once the enemy is gone
			require.Eventually(t, func() bool { return a.mr.Close() == nil }, 10*time.Second, time.Millisecond)
			require.NoError(t, errors.Join(a.arena.Close(), a.pd.Close()))
		}
		if err := b.mr.Close(); err != nil { // of the enemy's own making
			require.Eventually(t, func() bool { return b.mr.Close() == nil }, 10*time.Second, time.Millisecond)
		}
		_, _ = b.arena.Close(), b.pd.Close()

		ping(t, x, y)
		ping(t, y, x)
	}
	for _, s := range []*side{x, y} {
		busy, err := s.close()
		require.NoError(t, err)
		require.False(t, busy)
	}
	requireNothingHeld(t, fds)
}

// ping sends a message.
func ping(t testing.TB, from, to *side) {
	t.Helper()
	n, err := to.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: to.mr.Addr(), Length: 8, LKey: to.mr.LKey()}}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	want := rand.Uint64()
	_, err = from.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: binary.NativeEndian.AppendUint64(nil, want)}})
	require.NoError(t, err)
	for _, s := range []*side{from, to} {
		var wcs [2]verbs.WC
		n, err := s.cq.Poll(wcs[:])
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, verbs.Success, wcs[0].Status)
	}
	require.Equal(t, want, binary.NativeEndian.Uint64(to.arena.Bytes()))
}

// TestStrangeGreetings: who does not speak the protocol gets no link, and stands in nobody's way.
func TestStrangeGreetings(t *testing.T) {
	_, fds := held(t)
	p := New()
	l, err := listenAt(p)
	require.NoError(t, err)
	key := portKey{verbs.PSTCP, l.Addr().Port()}
	good := New().greeting(address{}, welcome)
	var open []int
	for _, g := range [][]byte{nil, {0}, make([]byte, headerLen), make([]byte, maxMessage), make([]byte, 3*maxMessage), good[:len(good)-1], append(good[:len(good):len(good)], 0)} {
		fd, _, err := dialName(key)
		require.NoError(t, err)
		open = append(open, fd)
		if g != nil {
			_ = sendMessage(fd, g, -1)
		}
	}
	x, y := connected(t, New(), p)
	ping(t, x, y)
	for _, s := range []*side{x, y} {
		_, err := s.close()
		require.NoError(t, err)
	}
	for _, fd := range open {
		require.NoError(t, closeFd(fd))
	}
	require.NoError(t, l.Close())
	requireNothingHeld(t, fds)
}

// TestSilentListener: a process that holds a port and says nothing is waited for as long as the caller wants.
func TestSilentListener(t *testing.T) {
	_, fds := held(t)
	fd, addr := silentName(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := dialTo(ctx, New(), addr)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(begin), 5*time.Second)
	require.NoError(t, closeFd(fd))
	_, err = dialTo(context.Background(), New(), addr)
	var rej *verbs.RejectError
	require.ErrorAs(t, err, &rej)
	require.NotErrorIs(t, err, net.ErrClosed)
	requireNothingHeld(t, fds)
}
