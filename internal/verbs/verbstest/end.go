package verbstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// end is one end of a connection, with everything that a consumer has for it.
type end struct {
	s  *suite
	t  testing.TB
	id verbs.CMID
	pd verbs.PD
	qp verbs.QP
	memory
	queue
	events *events
}

// options say how an end is made.
type options struct {
	init   verbs.QPInitAttr // queues are filled in
	depth  int              // of the completion queue
	mem    int              // bytes of registered memory
	access verbs.Access
	param  verbs.ConnParam
	pd     verbs.PD // of another end; nil: one of its own
	queue  *queue   // of another end; nil: one of its own

	from verbs.Provider // of an active end; nil: the suite's
}

type option func(*options)

func (s *suite) options(opts []option) *options {
	o := &options{
		init: verbs.QPInitAttr{
			Type: verbs.RC, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64, MinRNRTimer: 12,
		},
		depth:  1024,
		mem:    1 << 16,
		access: verbs.LocalWrite | verbs.RemoteWrite,
		param:  verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7},
	}
	if s.supports(verbs.OpRead) {
		o.access |= verbs.RemoteRead
		o.param.ResponderResources, o.param.InitiatorDepth = 4, 4
	}
	if s.supports(verbs.OpFetchAdd) {
		o.access |= verbs.RemoteAtomic
		o.param.ResponderResources, o.param.InitiatorDepth = 4, 4
	}
	if s.supports(verbs.OpFlush) {
		o.access |= verbs.FlushGlobal
	}
	for _, f := range opts {
		f(o)
	}
	return o
}

// ctx returns a context that ends with the suite's timeout.
func (s *suite) ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	t.Cleanup(cancel)
	return ctx
}

// listen listens on a port that the provider picks.
func (s *suite) listen(t testing.TB) verbs.Listener {
	l, err := s.Passive.Listen(s.ctx(t), s.listenAttr(0))
	require.NoError(t, err, "Listen")
	t.Cleanup(func() { closeIt(t, "listener", l) })
	return l
}

func (s *suite) listenAttr(port uint16) *verbs.ListenAttr {
	return &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Device: s.PassiveDevice, Local: netip.AddrPortFrom(s.Listen, port), Backlog: 512,
	}
}

// resolve returns an identifier that leads to the port.
func (s *suite) resolve(t testing.TB, port uint16, handler func(verbs.Event)) verbs.CMID {
	return s.resolveFrom(t, s.Active, port, handler)
}

func (s *suite) resolveFrom(t testing.TB, p verbs.Provider, port uint16, handler func(verbs.Event)) verbs.CMID {
	id, err := p.Resolve(s.ctx(t), s.resolveAttr(port, handler))
	require.NoError(t, err, "Resolve")
	t.Cleanup(func() { closeIt(t, "CMID", id) })
	return id
}

func (s *suite) resolveAttr(port uint16, handler func(verbs.Event)) *verbs.CMIDAttr {
	return &verbs.CMIDAttr{
		PortSpace: verbs.PSTCP, Device: s.ActiveDevice, Remote: netip.AddrPortFrom(s.Dial, port), Handler: handler,
	}
}

// active makes an end that is about to connect to the port.
func (s *suite) active(t testing.TB, port uint16, o *options) *end {
	ev := newEvents()
	from := o.from
	if from == nil {
		from = s.Active
	}
	return s.end(t, s.resolveFrom(t, from, port, ev.add), ev, o)
}

// passive makes an end out of the listener's next request.
func (s *suite) passive(t testing.TB, l verbs.Listener, o *options) *end {
	id := s.request(t, l)
	ev := newEvents()
	e := s.end(t, id, ev, o)
	id.SetHandler(ev.add)
	return e
}

// request takes the listener's next request.
func (s *suite) request(t testing.TB, l verbs.Listener) verbs.CMID {
	id, err := l.GetRequest(s.ctx(t))
	require.NoError(t, err, "GetRequest")
	t.Cleanup(func() { closeIt(t, "CMID", id) })
	return id
}

// end makes an end of an identifier.
func (s *suite) end(t testing.TB, id verbs.CMID, ev *events, o *options) *end {
	e := &end{s: s, t: t, id: id, events: ev}
	dev := s.deviceOf(t, id)
	if e.pd = o.pd; e.pd == nil {
		e.pd = newPD(t, dev)
	}
	e.memory = newMemory(t, e.pd, o.mem, o.access)
	if o.queue != nil {
		e.queue.shared = o.queue
	} else {
		e.queue.init(s, t, dev, o.depth)
	}
	attr := o.init
	if attr.SendCQ == nil {
		attr.SendCQ, attr.RecvCQ = e.queue.get().cq, e.queue.get().cq
	}
	qp, err := id.CreateQP(e.pd, &attr)
	require.NoError(t, err, "CreateQP")
	t.Cleanup(func() { closeIt(t, "QP", qp) })
	e.qp = qp
	return e
}

// deviceOf is where what a connection needs is made.
func (s *suite) deviceOf(t testing.TB, id verbs.CMID) verbs.Device {
	if !s.OpenDevices {
		return id.Device()
	}
	d, err := id.Provider().Open(id.Device().Name())
	require.NoError(t, err, "Open")
	t.Cleanup(func() { closeIt(t, "device", d) })
	return d
}

func newPD(t testing.TB, dev verbs.Device) verbs.PD {
	pd, err := dev.AllocPD()
	require.NoError(t, err, "AllocPD")
	t.Cleanup(func() { closeIt(t, "PD", pd) })
	return pd
}

// pair makes two connected ends.
func (s *suite) pair(t testing.TB, opts ...option) (a, b *end) {
	return s.pairOf(t, s.options(opts), s.options(opts))
}

// pairOf makes two connected ends, the active one first.
func (s *suite) pairOf(t testing.TB, oa, ob *options) (a, b *end) {
	return s.connect(t, s.listen(t), oa, ob)
}

func (s *suite) connect(t testing.TB, l verbs.Listener, oa, ob *options) (a, b *end) {
	a = s.active(t, l.Addr().Port(), oa)
	done := a.connect(s.ctx(t), &oa.param)
	b = s.passive(t, l, ob)
	require.NoError(t, b.id.Accept(&ob.param), "Accept")
	_, err := done()
	require.NoError(t, err, "Connect")
	if s.PathMTU != 0 {
		require.Equal(t, s.PathMTU, a.qp.Cap().PathMTU)
		require.Equal(t, s.PathMTU, b.qp.Cap().PathMTU)
	}
	return a, b
}

// connect begins to connect and returns a function that waits for the outcome.
func (e *end) connect(ctx context.Context, p *verbs.ConnParam) func() (*verbs.ConnParam, error) {
	return startConnect(ctx, e.id, p)
}

func startConnect(ctx context.Context, id verbs.CMID, p *verbs.ConnParam) func() (*verbs.ConnParam, error) {
	type result struct {
		p   *verbs.ConnParam
		err error
	}
	ch := make(chan result, 1)
	go func() {
		got, err := id.Connect(ctx, p)
		ch <- result{got, err}
	}()
	return func() (*verbs.ConnParam, error) {
		r := <-ch
		return r.p, r.err
	}
}

// closeIt closes c, which may be closed already.
func closeIt(t testing.TB, what string, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Close of %s: %v", what, err)
	}
}

// memory is registered memory: an arena, one region that covers it, and spans
// of it handed out one after the other.
type memory struct {
	t     testing.TB
	arena verbs.Arena
	mr    verbs.MR
	used  int
}

func newMemory(t testing.TB, pd verbs.PD, size int, access verbs.Access) memory {
	page := os.Getpagesize()
	arena, err := pd.NewArena((size + page - 1) / page * page)
	require.NoError(t, err, "NewArena")
	t.Cleanup(func() { closeIt(t, "arena", arena) })
	return memory{t: t, arena: arena, mr: register(t, pd, arena.Bytes(), access)}
}

func register(t testing.TB, pd verbs.PD, mem []byte, access verbs.Access) verbs.MR {
	mr, err := pd.RegMR(mem, access)
	require.NoError(t, err, "RegMR")
	t.Cleanup(func() { closeIt(t, "MR", mr) })
	return mr
}

const (
	guardLen  = 64
	guardByte = 0xA5
)

// span is a piece of a memory with guard bytes before and behind it.
type span struct {
	m      *memory
	off, n int
}

// span hands out n bytes between guards.
func (m *memory) span(n int) span {
	m.t.Helper()
	off := m.used + guardLen
	m.used = off + n + guardLen
	require.LessOrEqual(m.t, m.used, len(m.arena.Bytes()), "the test's memory is too small")
	mem := m.arena.Bytes()
	for i := off - guardLen; i < m.used; i++ {
		mem[i] = guardByte
	}
	return span{m, off, n}
}

// reset takes back all spans.
func (m *memory) reset() { m.used = 0 }

func (s span) bytes() []byte { return s.m.arena.Bytes()[s.off : s.off+s.n] }
func (s span) addr() uint64  { return s.m.mr.Addr() + uint64(s.off) }
func (s span) rkey() uint32  { return s.m.mr.RKey() }
func (s span) sge() verbs.SGE {
	return verbs.SGE{Addr: s.addr(), Length: uint32(s.n), LKey: s.m.mr.LKey()}
}
func (s span) sgl() []verbs.SGE { return []verbs.SGE{s.sge()} }

// fill writes a pattern that no other seed has.
func (s span) fill(seed uint64) span {
	fill(s.bytes(), seed)
	return s
}

func fill(b []byte, seed uint64) {
	x := seed*0x9E3779B97F4A7C15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 24)
	}
}

func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// requireGuards checks the bytes around the span.
func (s span) requireGuards(t testing.TB) {
	t.Helper()
	mem := s.m.arena.Bytes()
	for i := range guardLen {
		require.Equal(t, byte(guardByte), mem[s.off-1-i], "byte %d before the span was touched", i+1)
		require.Equal(t, byte(guardByte), mem[s.off+s.n+i], "byte %d behind the span was touched", i)
	}
}

// requireBytes checks the span's contents and the bytes around it.
func (s span) requireBytes(t testing.TB, want []byte) {
	t.Helper()
	got := s.bytes()
	require.Len(t, want, len(got))
	for i := range got {
		if got[i] != want[i] {
			require.Failf(t, "wrong data", "byte %d of %d is %#x, not %#x", i, len(got), got[i], want[i])
		}
	}
	s.requireGuards(t)
}

// requireUntouched checks that nothing wrote to the span since it was handed out.
func (s span) requireUntouched(t testing.TB) {
	t.Helper()
	for i, v := range s.bytes() {
		require.Equal(t, byte(guardByte), v, "byte %d was touched", i)
	}
	s.requireGuards(t)
}

// queue is a completion queue and who waits for it.
type queue struct {
	s        *suite
	t        testing.TB
	cq       verbs.CQ
	wake     chan struct{}
	notified atomic.Int64
	shared   *queue // used instead, if not nil

	ready []verbs.WC // polled, not yet asked for
	buf   [16]verbs.WC
}

func (q *queue) init(s *suite, t testing.TB, dev verbs.Device, depth int) {
	q.s, q.t = s, t
	q.wake = make(chan struct{}, 1)
	cq, err := dev.CreateCQ(&verbs.CQAttr{Depth: depth, Notify: func() {
		q.notified.Add(1)
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}})
	require.NoError(t, err, "CreateCQ")
	t.Cleanup(func() { closeIt(t, "CQ", cq) })
	q.cq = cq
}

func (q *queue) get() *queue {
	if q.shared != nil {
		return q.shared
	}
	return q
}

// poll moves what has completed to ready.
func (q *queue) poll() error {
	for {
		n, err := q.cq.Poll(q.buf[:])
		q.ready = append(q.ready, q.buf[:n]...)
		if err != nil {
			return err
		}
		if n < len(q.buf) {
			return nil
		}
	}
}

// next returns the next n completions, or an error after the suite's timeout.
func (q *queue) next(n int) ([]verbs.WC, error) {
	q = q.get()
	timer := time.NewTimer(q.s.Timeout)
	defer timer.Stop()
	for armed := false; ; armed = !armed {
		if err := q.poll(); err != nil {
			return nil, err
		}
		switch {
		case len(q.ready) >= n:
			wcs := q.ready[:n:n]
			q.ready = q.ready[n:]
			return wcs, nil
		case !armed:
			if err := q.cq.Arm(); err != nil {
				return nil, err
			}
		default:
			select {
			case <-q.wake:
			case <-timer.C:
				return nil, fmt.Errorf("%d of %d completions after %v: %+v", len(q.ready), n, q.s.Timeout, q.ready)
			}
		}
	}
}

// wait returns the next n completions.
func (q *queue) wait(n int) []verbs.WC {
	q = q.get()
	q.t.Helper()
	wcs, err := q.next(n)
	require.NoError(q.t, err)
	return wcs
}

// quiet checks that no completion comes.
func (q *queue) quiet() {
	q = q.get()
	q.t.Helper()
	for range 4 {
		require.NoError(q.t, q.poll())
		require.Empty(q.t, q.ready, "a completion that nobody asked for")
		time.Sleep(5 * time.Millisecond)
	}
}

// waitID waits for one completion and checks whose it is.
func (e *end) waitID(id uint64, status verbs.Status) verbs.WC {
	e.t.Helper()
	wc := e.wait(1)[0]
	require.Equal(e.t, id, wc.ID, "completion %+v", wc)
	require.Equal(e.t, status, wc.Status, "completion %+v", wc)
	require.Equal(e.t, e.qp.Num(), wc.QPN, "completion %+v", wc)
	return wc
}

// send posts requests that the send queue has room for.
func (e *end) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.qp.PostSend(wrs)
	require.NoError(e.t, err, "PostSend")
	require.Equal(e.t, len(wrs), n, "PostSend")
}

// recv posts receives that the receive queue has room for.
func (e *end) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	n, err := e.qp.PostRecv(wrs)
	require.NoError(e.t, err, "PostRecv")
	require.Equal(e.t, len(wrs), n, "PostRecv")
}

// ping checks that a message gets from e to to.
func (e *end) ping(to *end) {
	e.t.Helper()
	const id = 0x70696E67
	buf := to.span(8)
	to.recv(verbs.RecvWR{ID: id, SGL: buf.sgl()})
	msg := e.span(8).fill(id)
	e.send(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: msg.sgl()})
	e.waitID(id, verbs.Success)
	to.waitID(id, verbs.Success)
	buf.requireBytes(e.t, msg.bytes())
}

// events collects the events of an identifier.
type events struct {
	mu   sync.Mutex
	all  []verbs.Event
	wake chan struct{}
}

func newEvents() *events { return &events{wake: make(chan struct{}, 1)} }

func (ev *events) add(e verbs.Event) {
	ev.mu.Lock()
	ev.all = append(ev.all, e)
	ev.mu.Unlock()
	select {
	case ev.wake <- struct{}{}:
	default:
	}
}

func (ev *events) list() []verbs.Event {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	return append([]verbs.Event(nil), ev.all...)
}

// types returns the types of the events so far.
func (ev *events) types() []verbs.EventType {
	var ts []verbs.EventType
	for _, e := range ev.list() {
		ts = append(ts, e.Type)
	}
	return ts
}

// waitEvents waits for exactly these events, counted from the beginning.
func (e *end) waitEvents(want ...verbs.EventType) {
	e.t.Helper()
	e.events.wait(e.s, e.t, want...)
}

func (ev *events) wait(s *suite, t testing.TB, want ...verbs.EventType) {
	t.Helper()
	timer := time.NewTimer(s.Timeout)
	defer timer.Stop()
	for len(ev.list()) < len(want) {
		select {
		case <-ev.wake:
		case <-timer.C:
			require.Equal(t, want, ev.types(), "events after %v", s.Timeout)
		}
	}
	require.Equal(t, want, ev.types())
}

// group runs functions and collects their errors.
type group struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

func (g *group) run(f func() error) {
	g.wg.Go(func() {
		if err := f(); err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, err)
			g.mu.Unlock()
		}
	})
}

func (g *group) wait(t testing.TB) {
	t.Helper()
	g.wg.Wait()
	require.NoError(t, errors.Join(g.errs...))
}

// requireClosed closes what is given, one after the other.
func requireClosed(t *testing.T, all ...io.Closer) {
	t.Helper()
	for i, c := range all {
		require.NoError(t, c.Close(), "%d: %T", i, c)
	}
}
