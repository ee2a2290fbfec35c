//go:build linux

package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// pool is a server's shared receive queue, for clients that are processes.
type pool struct {
	t     testing.TB
	p     *Provider
	l     verbs.Listener
	dev   verbs.Device
	pd    verbs.PD
	arena verbs.Arena
	mr    verbs.MR
	own   verbs.MR // a mapping of the server's own
	mem   []byte
	cq    verbs.CQ
	wake  chan struct{}
	srq   *srq
	ends  map[uint32]*poolEnd
	fresh chan *poolEnd
	out   map[uint64]bool // receives that are posted
}

// poolEnd is the server's end of a connection.
type poolEnd struct {
	id     verbs.CMID
	qp     verbs.QP
	next   uint64 // number of the next message
	ended  bool
	events chan verbs.Event
}

const (
	poolDepth   = 24
	poolMessage = 64
)

func newPool(t testing.TB, p *Provider) *pool {
	s := &pool{t: t, p: p, wake: make(chan struct{}, 1), ends: make(map[uint32]*poolEnd), fresh: make(chan *poolEnd, 64), out: make(map[uint64]bool)}
	var err error
	s.l, err = listenAt(p)
	require.NoError(t, err)
	s.dev, err = p.Open(deviceName)
	require.NoError(t, err)
	s.pd, err = s.dev.AllocPD()
	require.NoError(t, err)
	s.arena, err = s.pd.NewArena(sideMemory)
	require.NoError(t, err)
	s.mr, err = s.pd.RegMR(s.arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	s.mem, err = unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	s.own, err = s.pd.RegMR(s.mem, verbs.LocalWrite)
	require.NoError(t, err)
	s.cq, err = s.dev.CreateCQ(&verbs.CQAttr{Depth: 1024, Notify: func() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}})
	require.NoError(t, err)
	made, err := s.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: poolDepth, MaxSGE: 1})
	require.NoError(t, err)
	s.srq = made.(*srq)
	for id := range uint64(poolDepth) {
		s.post(id)
	}
	return s
}

// at is where receive id goes: every fourth to the mapping.
func (s *pool) at(id uint64) (mem []byte, mr verbs.MR) {
	if id%4 == 3 {
		return s.mem[id*poolMessage:][:poolMessage], s.own
	}
	return s.arena.Bytes()[id*poolMessage:][:poolMessage], s.mr
}

func (s *pool) post(id uint64) {
	require.False(s.t, s.out[id])
	s.out[id] = true
	_, mr := s.at(id)
	n, err := s.srq.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{{Addr: mr.Addr() + id*poolMessage, Length: poolMessage, LKey: mr.LKey()}}}})
	require.NoError(s.t, err)
	require.Equal(s.t, 1, n)
}

// serve takes connections until the listener closes.
func (s *pool) serve(ctx context.Context) {
	for {
		id, err := s.l.GetRequest(ctx)
		if err != nil {
			return
		}
		e := &poolEnd{id: id, events: make(chan verbs.Event, 16)}
		id.SetHandler(func(ev verbs.Event) {
			select {
			case e.events <- ev:
			default:
			}
		})
		e.qp, err = id.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, MaxSendWR: 4})
		if err != nil {
			_ = id.Close()
			continue
		}
		s.fresh <- e
		_ = id.Accept(&sideParam)
	}
}

// take takes messages for a time. Each is what the client's next one has to be, each receive is taken once, and posted again.
func (s *pool) take(d time.Duration) (messages int) {
	var wcs [16]verbs.WC
	for end := time.Now().Add(d); time.Now().Before(end); {
		for more := true; more; {
			select {
			case e := <-s.fresh:
				s.ends[e.qp.Num()] = e
			default:
				more = false
			}
		}
		n, err := s.cq.Poll(wcs[:])
		require.NoError(s.t, err)
		for _, wc := range wcs[:n] {
			messages += s.took(&wc)
		}
		if n > 0 {
			continue
		}
		require.NoError(s.t, s.cq.Arm())
		if n, err = s.cq.Poll(wcs[:1]); err == nil && n == 1 {
			messages += s.took(&wcs[0])
			continue
		}
		select {
		case <-s.wake:
		case e := <-s.fresh:
			s.ends[e.qp.Num()] = e
		case <-time.After(time.Until(end)):
		}
	}
	return messages
}

func (s *pool) took(wc *verbs.WC) int {
	if wc.Op != verbs.WCRecv {
		return 0
	}
	require.True(s.t, s.out[wc.ID], "receive %d twice", wc.ID)
	delete(s.out, wc.ID)
	good := 0
	e := s.ends[wc.QPN]
	if e == nil { // it has just come
		for e == nil {
			f := <-s.fresh
			s.ends[f.qp.Num()] = f
			e = s.ends[wc.QPN]
		}
	}
	if wc.Status == verbs.Success {
		mem, _ := s.at(wc.ID)
		if wc.ByteLen == poolMessage {
			first := binary.NativeEndian.Uint64(mem)
			for i := 0; i < poolMessage; i += 8 {
				require.Equal(s.t, first, binary.NativeEndian.Uint64(mem[i:]), "two messages in one receive")
			}
			require.Equal(s.t, e.next, first, "message")
			e.next++
			good++
		}
	}
	s.post(wc.ID)
	return good
}

// reap closes the connections whose processes are no more.
func (s *pool) reap(want int) {
	s.t.Helper()
	gone := 0
	for end := time.Now().Add(10 * time.Second); gone < want && time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.take(time.Millisecond)
		for num, e := range s.ends {
			select {
			case ev := <-e.events:
				e.ended = e.ended || ev.Type != verbs.EventEstablished
			default:
			}
			if e.ended {
				require.NoError(s.t, e.qp.Close())
				require.NoError(s.t, e.id.Close())
				delete(s.ends, num)
				gone++
			}
		}
	}
	require.Equal(s.t, want, gone, "connections that ended")
}

// atRest checks that all receives are the server's, to be lent, and closes it.
func (s *pool) atRest() {
	s.t.Helper()
	require.Empty(s.t, s.ends)
	require.Len(s.t, s.out, poolDepth)
	require.NoError(s.t, s.l.Close())
	require.Eventually(s.t, func() bool { // what a client that went was in the middle of
		s.srq.mu.Lock()
		defer s.srq.mu.Unlock()
		return s.srq.ready.n == poolDepth && s.srq.left == poolDepth
	}, 10*time.Second, time.Millisecond)
	require.NoError(s.t, s.srq.Close())
	require.NoError(s.t, s.cq.Close())
	require.NoError(s.t, s.mr.Close())
	require.NoError(s.t, s.own.Close())
	require.NoError(s.t, s.arena.Close())
	require.NoError(s.t, s.pd.Close())
	require.NoError(s.t, s.dev.Close())
	require.NoError(s.t, unix.Munmap(s.mem))
}

// sendForever is the client: numbered messages on several connections.
func sendForever(ctx context.Context, p *Provider, to netip.AddrPort, conns int) error {
	var sides []*side
	for range conns {
		s, err := dialTo(ctx, p, to)
		if err != nil {
			return err
		}
		sides = append(sides, s)
	}
	var wcs [16]verbs.WC
	for n := uint64(0); ctx.Err() == nil; n++ {
		for _, s := range sides {
			msg := make([]byte, 0, poolMessage)
			for len(msg) < poolMessage {
				msg = binary.NativeEndian.AppendUint64(msg, n)
			}
			for {
				k, err := s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, Inline: msg}})
				if err != nil {
					return err
				}
				if _, err := s.cq.Poll(wcs[:]); err != nil {
					return err
				}
				if k == 1 {
					break
				}
				time.Sleep(10 * time.Microsecond)
			}
		}
		if n%8 == 0 {
			time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		}
	}
	return nil
}

// TestSharedQueueOfProcesses: several processes take from one shared receive queue. One is killed and one is stopped in the middle, again and again: the
// others go on, no receive is lost, and none has what was not sent to it.
func TestSharedQueueOfProcesses(t *testing.T) {
	_, fds := held(t)
	rounds, conns := 6, 2
	if long() {
		rounds = 150
	}
	s := newPool(t, New())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.serve(ctx) })
	client := func() *exec.Cmd {
		cmd, _ := start(t, fmt.Sprintf("share %d %v", conns, s.l.Addr()))
		return cmd
	}
	all := 0
	clients := []*exec.Cmd{client(), client(), client()}
	joined := func() {
		for end := time.Now().Add(20 * time.Second); len(s.ends) < conns*len(clients) && time.Now().Before(end); {
			all += s.take(time.Millisecond)
		}
		require.Len(t, s.ends, conns*len(clients))
	}
	for range rounds {
		joined()
		all += s.take(time.Duration(rand.IntN(10000)) * time.Microsecond)
		stop(t, clients[0])
		all += s.take(time.Duration(rand.IntN(2000)) * time.Microsecond)
		kill(t, clients[1])
		s.reap(conns)
		// The third has all to itself but what the stopped one is in the middle of.
		going := 0
		for end := time.Now().Add(20 * time.Second); going < 3*poolDepth && time.Now().Before(end); {
			going += s.take(5 * time.Millisecond)
		}
		require.GreaterOrEqual(t, going, 3*poolDepth, "the others stand still")
		all += going
		require.NoError(t, clients[0].Process.Signal(syscall.SIGCONT))
		clients[1] = client()
		clients[0], clients[2] = clients[2], clients[0]
	}
	joined()
	for _, cmd := range clients {
		kill(t, cmd)
	}
	s.reap(conns * len(clients))
	t.Logf("%d messages", all)
	cancel()
	wg.Wait()
	s.atRest()
	requireNothingHeld(t, fds)
}

// TestSharedQueueOfHostile: a client writes garbage into its ring, and takes all that it can, while another goes on. That has its messages, and
// all receives come back.
func TestSharedQueueOfHostile(t *testing.T) {
	_, fds := held(t)
	rounds := 15
	if long() {
		rounds = 500
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := newPool(t, New())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.serve(ctx) })
	friend, _ := start(t, fmt.Sprintf("share 1 %v", s.l.Addr()))
	for end := time.Now().Add(20 * time.Second); len(s.ends) < 1 && time.Now().Before(end); {
		s.take(time.Millisecond)
	}
	require.Len(t, s.ends, 1)
	for round := range rounds {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		done := make(chan *side, 1)
		go func() {
			e, err := dialTo(ctx, New(), s.l.Addr())
			if err != nil {
				e = nil
			}
			done <- e
		}()
		var enemy *side
		for enemy == nil {
			s.take(time.Millisecond)
			select {
			case enemy = <-done:
				require.NotNil(t, enemy)
			default:
			}
		}
		q := enemy.qp.(*qp)
		q.mu.Lock()
		ring := q.remote.recvs
		q.mu.Unlock()
		stop := make(chan struct{})
		var bad sync.WaitGroup
		if round%3 == 0 { // it takes all that is lent to it, and asks for more
			bad.Go(func() { hold(q.dev.link, ring, stop) })
		} else {
			bad.Go(func() {
				for !stopped(stop) {
					garble(r, ring.mem)
				}
			})
			bad.Go(func() {
				r := rand.New(rand.NewPCG(seed, ^uint64(round)))
				use(r, enemy, inBoard(r, q.dev), time.Now().Add(20*time.Millisecond))
			})
		}
		going := 0
		for end := time.Now().Add(20 * time.Second); going < 3*poolDepth && time.Now().Before(end); {
			going += s.take(5 * time.Millisecond)
		}
		require.GreaterOrEqual(t, going, 3*poolDepth, "the others stand still")
		close(stop)
		bad.Wait()
		_, _ = enemy.close()
		q.dev.link.close()
		s.reap(1)
		if enemy.mr.Close() != nil {
			require.Eventually(t, func() bool { return enemy.mr.Close() == nil }, 10*time.Second, time.Millisecond)
		}
		_, _ = enemy.arena.Close(), enemy.pd.Close()
	}
	kill(t, friend)
	s.reap(1)
	cancel()
	wg.Wait()
	s.atRest()
	requireNothingHeld(t, fds)
}

// hold takes all receives of a ring and gives none back.
func hold(l *link, r *remoteRing, stop <-chan struct{}) {
	for {
		for i := range r.slots {
			w := word64(r.mem, ringSlots+int(i)*r.stride+slotSGEs)
			if n := w.Load(); n&whose == lent {
				w.CompareAndSwap(n, n&^whose|taken)
			}
		}
		r.waits.Store(1)
		l.tell(header{Kind: msgWant, ID: r.id})
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// TestStaleNone: that there is no receive is no news where one has come since the question.
func TestStaleNone(t *testing.T) {
	one, other := New(), New()
	x, y := connected(t, one, other)
	q := x.qp.(*qp)
	l := q.dev.link
	r := &remoteRing{l: l, id: 77, refs: 1, asked: true, wants: 3}
	l.mu.Lock()
	l.shared[77] = r
	l.mu.Unlock()
	none := func(n uint16) bool {
		l.gotShared(header{Kind: msgNone, Extra: n, ID: 77})
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.none
	}
	require.False(t, none(2), "to a question before")
	r.mu.Lock()
	r.endTurn()
	r.mu.Unlock()
	require.False(t, none(3), "one was taken")
	r.mu.Lock()
	r.asked, r.wants = true, 4
	r.mu.Unlock()
	require.True(t, none(4))
	l.gotShared(header{Kind: msgShared, ID: 77})
	r.mu.Lock()
	require.False(t, r.none)
	r.mu.Unlock()
	l.mu.Lock()
	delete(l.shared, 77)
	l.mu.Unlock()
	for _, s := range []*side{x, y} {
		_, err := s.close()
		require.NoError(t, err)
	}
}
