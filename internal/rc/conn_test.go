package rc

import (
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/verbs"
)

func TestMain(m *testing.M) {
	leak.Start()
	goleak.VerifyTestMain(m, goleak.Cleanup(leak.Exit))
}

// testCQ is a completion queue that tests fill. It keeps Arm's contract: one
// Notify for each Arm, for a completion that comes after it.
type testCQ struct {
	notify func()

	onArm func() // runs just before the queue is armed

	mu    sync.Mutex
	wcs   []verbs.WC
	armed bool
	arms  int
}

func (q *testCQ) Poll(wc []verbs.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := copy(wc, q.wcs)
	q.wcs = q.wcs[n:]
	return n, nil
}

func (q *testCQ) Arm() error {
	if f := q.onArm; f != nil {
		q.onArm = nil
		f()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = true
	q.arms++
	return nil
}

func (q *testCQ) Close() error { return nil }

// push adds completions, and notifies as the last step, on the caller's goroutine.
func (q *testCQ) push(wcs ...verbs.WC) {
	q.mu.Lock()
	q.wcs = append(q.wcs, wcs...)
	call := q.armed
	q.armed = false
	q.mu.Unlock()
	if call {
		q.notify()
	}
}

// dearCQ is a queue whose calls shall be few.
type dearCQ struct {
	*testCQ
	calls int // of PollOrArm; the poller's
}

func (q *dearCQ) PollOrArm(wc []verbs.WC, _ time.Duration, arm bool) (n int, armed bool, err error) {
	q.calls++
	if n, err = q.Poll(wc); n > 0 || err != nil || !arm {
		return n, false, err
	}
	if err = q.Arm(); err != nil {
		return 0, false, err
	}
	n, err = q.Poll(wc)
	return n, true, err
}

// queues runs a test on both kinds of queue.
func queues(t *testing.T, test func(t *testing.T, one func(*testCQ) verbs.ArmPoller)) {
	t.Run("plain", func(t *testing.T) { test(t, func(*testCQ) verbs.ArmPoller { return nil }) })
	t.Run("dear", func(t *testing.T) { test(t, func(q *testCQ) verbs.ArmPoller { return &dearCQ{testCQ: q} }) })
}

// testHandler checks that it is called serially and in order, and wakes both sides.
type testHandler struct {
	t      *testing.T
	inside atomic.Int32
	pends  atomic.Bool
	next   atomic.Uint64
	events atomic.Uint64
	a, b   *Side
}

func (h *testHandler) enter() func() {
	if h.inside.Add(1) != 1 {
		h.t.Error("two at once")
	}
	return func() { h.inside.Add(-1) }
}

func (h *testHandler) HandleCompletions(wcs []verbs.WC) {
	defer h.enter()()
	for _, wc := range wcs {
		if wc.ID != h.next.Load() {
			h.t.Errorf("completion %d, want %d", wc.ID, h.next.Load())
		}
		h.next.Add(1)
	}
	h.a.Signal()
	h.b.Signal()
}

func (h *testHandler) HandleEvent(ev verbs.Event) {
	defer h.enter()()
	h.events.Add(1)
}

func (h *testHandler) HandleFailure(err error) { h.t.Error(err) }

func (h *testHandler) Pending() bool { return h.pends.Load() }

// TestNothingIsStranded: whoever polls, waits, spins or parks, every completion is
// handled once, in order and soon, also when nobody calls in.
func TestNothingIsStranded(t *testing.T) {
	queues(t, func(t *testing.T, one func(*testCQ) verbs.ArmPoller) {
		for _, busy := range []time.Duration{0, -1, 20 * time.Microsecond} {
			refreshProcs()
			q := &testCQ{}
			h := &testHandler{t: t}
			c := &Poller{cq: q, one: one(q), h: h, rest: rest{every: time.Hour}}
			c.busy.Store(int64(busy))
			q.notify = c.notify
			c.role.Store(rolePolling)
			var wantA, wantB, pushed atomic.Uint64
			h.a = NewSide(func() bool { return h.next.Load() >= wantA.Load() })
			h.b = NewSide(func() bool { return h.next.Load() >= wantB.Load() })
			q.push(verbs.WC{ID: 0}) // before Start
			pushed.Store(1)
			c.Start()

			const total = 50000
			var wg sync.WaitGroup
			wg.Go(func() { // the provider
				rng := rand.New(rand.NewPCG(1, 2))
				for id := uint64(1); id < total; {
					n := min(1+rng.Uint64N(3), total-id)
					wcs := make([]verbs.WC, n)
					for i := range wcs {
						wcs[i].ID = id
						id++
					}
					q.push(wcs...)
					pushed.Store(id)
					if id%97 < 3 {
						c.Event(verbs.Event{Type: verbs.EventAddrChange})
					}
					switch rng.IntN(40) {
					case 0:
						time.Sleep(time.Microsecond)
					case 1, 2, 3:
						runtime.Gosched()
					}
				}
			})
			for _, side := range []struct {
				s    *Side
				want *atomic.Uint64
			}{{h.a, &wantA}, {h.b, &wantB}} {
				wg.Go(func() {
					for next := uint64(1); next <= total; next += 1 + next%5 {
						side.want.Store(next)
						for h.next.Load() < next {
							if !assert.NoError(t, c.Wait(side.s)) {
								return
							}
						}
					}
				})
			}
			wg.Go(func() { // somebody who calls in now and then
				for h.next.Load() < total-10 {
					c.Progress()
					time.Sleep(50 * time.Microsecond)
				}
			})
			done := make(chan struct{})
			go func() { defer close(done); wg.Wait() }()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Fatalf("stuck: %d handled of %d pushed; waiting for %d and %d", h.next.Load(), pushed.Load(), wantA.Load(), wantB.Load())
			}
			require.EqualValues(t, total, h.next.Load())
			require.EqualValues(t, roleIdle, c.role.Load())
			c.Attend()
			require.True(t, c.armed.Load())
			spins, parks, wakeups := c.Counts()
			t.Logf("busy poll %v: %d spins, %d parks, %d wakeups, %d arms, %d events", busy, spins, parks, wakeups, q.arms, h.events.Load())
			require.Equal(t, parks, wakeups)
			if busy < 0 {
				require.Zero(t, spins)
			}
		}
	})
}

// TestEachOneArrives: a completion comes only after the one before was seen, so
// that a single one that is stranded, or a single wake-up that is lost, stops everything.
func TestEachOneArrives(t *testing.T) {
	queues(t, func(t *testing.T, one func(*testCQ) verbs.ArmPoller) {
		for name, busy := range map[string]time.Duration{"adaptive": 0, "never spinning": -1, "spinning shortly": time.Microsecond} {
			t.Run(name, func(t *testing.T) {
				refreshProcs()
				q := &testCQ{}
				h := &testHandler{t: t}
				c := &Poller{cq: q, one: one(q), h: h, rest: rest{every: time.Hour}}
				c.busy.Store(int64(busy))
				q.notify = c.notify
				c.role.Store(rolePolling)
				var want atomic.Uint64
				h.a = NewSide(func() bool { return h.next.Load() >= want.Load() })
				h.b = NewSide(func() bool { return false })
				c.Start()
				const total = 20000
				var wg sync.WaitGroup
				var stop atomic.Bool
				wg.Go(func() {
					for id, turns := uint64(0), 0; id < total && !stop.Load(); turns++ {
						if want.Load() != id+1 {
							if turns%200 == 0 {
								runtime.Gosched()
							}
							continue
						}
						for range id % 500 { // at another moment of the waiter's turn each time
							want.Load()
						}
						q.push(verbs.WC{ID: id})
						id++
					}
				})
				wg.Go(func() {
					for id := uint64(0); id < total; id++ {
						want.Store(id + 1)
						for h.next.Load() <= id {
							if id%3 == 0 {
								c.Progress()
							}
							if c.Wait(h.a) != nil {
								return
							}
						}
					}
				})
				done := make(chan struct{})
				go func() { defer close(done); wg.Wait() }()
				for last := uint64(0); ; {
					select {
					case <-done:
						require.EqualValues(t, total, h.next.Load())
						return
					case <-time.After(2 * time.Second):
					}
					n := h.next.Load() + want.Load()
					if n == last {
						stop.Store(true)
						h.a.Close(os.ErrClosed)
						<-done
						t.Fatalf("stuck: %d handled, waiting for %d", h.next.Load(), want.Load())
					}
					last = n
				}
			})
		}
	})
}

// TestNarrowMoments: what happens between looking and arming, looking and
// parking, and while another one leaves.
func TestNarrowMoments(t *testing.T) {
	queues(t, func(t *testing.T, one func(*testCQ) verbs.ArmPoller) {
		newConn := func() (*Poller, *testCQ, *testHandler) {
			q := &testCQ{}
			h := &testHandler{t: t}
			h.a, h.b = NewSide(func() bool { return false }), NewSide(func() bool { return false })
			c := &Poller{cq: q, one: one(q), h: h, rest: rest{every: time.Hour}}
			c.busy.Store(-1)
			q.notify = c.notify
			c.role.Store(rolePolling)
			return c, q, h
		}
		t.Run("between the last look and Arm", func(t *testing.T) {
			c, q, h := newConn()
			q.onArm = func() { q.push(verbs.WC{ID: 0}) }
			c.Start()
			require.EqualValues(t, 1, h.next.Load())
		})
		t.Run("notified while another leaves", func(t *testing.T) {
			c, q, h := newConn()
			c.Start()
			require.True(t, c.enter()) // somebody polls
			q.push(verbs.WC{ID: 0})    // and this Notify finds the role taken
			require.EqualValues(t, 0, h.next.Load())
			c.leave(new(batch), false)
			require.EqualValues(t, 1, h.next.Load())
			q.push(verbs.WC{ID: 1})
			require.EqualValues(t, 2, h.next.Load())
		})
		t.Run("between looking and parking", func(t *testing.T) {
			c, _, _ := newConn()
			c.Start()
			met := false
			var s *Side
			s = NewSide(func() bool {
				was := met
				met = true
				s.Signal() // nobody is parked yet
				return was
			})
			s.SetDeadline(time.Now().Add(10 * time.Second))
			require.NoError(t, c.Wait(s))
		})
	})
}

// TestCalls: a batch costs two calls, one that takes it and one that finds no more and arms.
func TestCalls(t *testing.T) {
	q := &testCQ{}
	dear := &dearCQ{testCQ: q}
	h := &testHandler{t: t}
	h.a, h.b = NewSide(func() bool { return false }), NewSide(func() bool { return false })
	c := &Poller{cq: q, one: dear, h: h, rest: rest{every: time.Hour}}
	q.notify = c.notify
	c.role.Store(rolePolling)
	c.Start()
	id := uint64(0)
	for range 10 {
		before, arms := dear.calls, q.arms
		batch := make([]verbs.WC, 20)
		for i := range batch {
			batch[i].ID = id
			id++
		}
		q.push(batch...)
		require.Equal(t, id, h.next.Load())
		require.Equal(t, 2, dear.calls-before)
		require.Equal(t, 1, q.arms-arms)
	}
	// A reader that finds what it waits for by polling needs one.
	before := dear.calls
	c.armed.Store(false) // the Notify of before is about to find the role taken
	q.mu.Lock()
	q.armed = false
	q.mu.Unlock()
	q.push(verbs.WC{ID: id})
	s := NewSide(func() bool { return h.next.Load() > id })
	h.a = s
	require.True(t, met(c.spinOn(s, now(), int64(time.Second))))
	require.Equal(t, 1, dear.calls-before)
}

// TestEventAfterCompletions: what completed before an event is handled before it.
func TestEventAfterCompletions(t *testing.T) {
	q := &testCQ{}
	h := &testHandler{t: t}
	h.a, h.b = NewSide(func() bool { return false }), NewSide(func() bool { return false })
	c := &Poller{cq: q, h: h}
	q.notify = func() {}
	c.role.Store(rolePolling)
	c.Event(verbs.Event{}) // waits for Start
	require.Zero(t, h.events.Load())
	q.push(verbs.WC{ID: 0}, verbs.WC{ID: 1})
	order := &orderHandler{testHandler: h}
	c.h = order
	c.Start()
	require.Equal(t, []string{"completions", "event"}, order.seen)
}

type orderHandler struct {
	*testHandler
	seen []string
}

func (h *orderHandler) HandleCompletions(wcs []verbs.WC) { h.seen = append(h.seen, "completions") }
func (h *orderHandler) HandleEvent(ev verbs.Event)       { h.seen = append(h.seen, "event") }

// TestWaitEnds: a deadline and a close end a wait, parked or spinning.
func TestWaitEnds(t *testing.T) {
	refreshProcs()
	for _, busy := range []time.Duration{-1, 0, time.Second} {
		c := &Poller{cq: &testCQ{notify: func() {}}, h: &testHandler{t: t}}
		c.busy.Store(int64(busy))
		s := NewSide(func() bool { return false })
		s.SetDeadline(time.Now().Add(5 * time.Millisecond))
		var err error
		for start := time.Now(); err == nil && time.Since(start) < 10*time.Second; {
			err = c.Wait(s)
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		s.SetDeadline(time.Time{})
		go func() {
			time.Sleep(2 * time.Millisecond)
			s.Close(os.ErrClosed)
		}()
		for err = nil; err == nil; err = c.Wait(s) {
		}
		require.ErrorIs(t, err, os.ErrClosed)
	}
}

// TestSpinner: spinning that does not pay stops, and is tried again now and then.
func TestSpinner(t *testing.T) {
	procs.Store(2)
	defer refreshProcs()
	p := Spinner{score: scoreMax / 2}
	spins := 0
	for range 1000 {
		if p.Budget(0, false) > 0 {
			spins++
			p.Account(false, spinMax)
		}
	}
	assert.Less(t, spins, 50)
	assert.Greater(t, spins, 10)
	for range 100 {
		if d := p.Budget(0, false); d > 0 {
			p.Account(true, 2000)
		}
	}
	assert.Positive(t, p.Budget(0, false))
	assert.Less(t, p.Budget(0, false), spinMax, "a wait is not spun for much longer than waits usually take")
	assert.Zero(t, p.Budget(-1, false))
	assert.EqualValues(t, 7, p.Budget(7, false))
	procs.Store(1)
	assert.Zero(t, p.Budget(0, false))
	assert.Zero(t, p.Budget(7, false), "a single processor is needed by who is waited for")
}
