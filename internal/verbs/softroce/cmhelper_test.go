package softroce

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// side is one end of a connection, with a queue pair and a page of memory.
type side struct {
	t     testing.TB
	id    verbs.CMID
	pd    verbs.PD
	arena verbs.Arena
	mr    verbs.MR
	cq    verbs.CQ
	qp    verbs.QP

	mu     sync.Mutex
	events []verbs.Event
	at     []time.Time
}

// newSide makes the queue pair of an identifier, and hears its events.
func newSide(t testing.TB, id verbs.CMID) *side {
	t.Helper()
	return newSideOf(t, id, verbs.RC)
}

func newSideOf(t testing.TB, id verbs.CMID, typ verbs.QPType) *side {
	t.Helper()
	s := &side{t: t, id: id}
	var err error
	s.pd, err = id.Device().AllocPD()
	require.NoError(t, err)
	s.arena, err = s.pd.NewArena(1 << 16)
	require.NoError(t, err)
	s.mr, err = s.pd.RegMR(s.arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	s.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 64})
	require.NoError(t, err)
	s.qp, err = id.CreateQP(s.pd, &verbs.QPInitAttr{Type: typ, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 16, MaxRecvWR: 16})
	require.NoError(t, err)
	id.SetHandler(s.hear)
	return s
}

func (s *side) hear(e verbs.Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.at = append(s.at, time.Now())
	s.mu.Unlock()
}

func (s *side) types() (ts []verbs.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		ts = append(ts, e.Type)
	}
	return ts
}

// wait waits for the n-th event, counted from 1.
func (s *side) wait(n int) verbs.Event {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.types()) >= n }, 20*time.Second, time.Millisecond, "event %d", n)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[n-1]
}

func (s *side) close() {
	s.t.Helper()
	for _, c := range []interface{ Close() error }{s.qp, s.cq, s.mr, s.arena, s.pd, s.id} {
		require.NoError(s.t, c.Close())
	}
}

// completion waits for one completion.
func (s *side) completion() verbs.WC {
	s.t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		n, err := s.cq.Poll(wc[:])
		require.NoError(s.t, err)
		if n == 1 {
			return wc[0]
		}
		time.Sleep(100 * time.Microsecond)
	}
	s.t.Fatal("no completion")
	return wc[0]
}

// ping sends a message to the other side.
func (s *side) ping(to *side) {
	s.t.Helper()
	to.post()
	s.say("ping")
	require.Equal(s.t, "ping", to.heard())
}

func (s *side) post() {
	s.t.Helper()
	n, err := s.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: s.mr.Addr(), Length: 4096, LKey: s.mr.LKey()}}}})
	require.NoError(s.t, err)
	require.Equal(s.t, 1, n)
}

func (s *side) say(text string) {
	s.t.Helper()
	n, err := s.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte(text)}})
	require.NoError(s.t, err)
	require.Equal(s.t, 1, n)
	wc := s.completion()
	require.Equal(s.t, verbs.Success, wc.Status)
	require.EqualValues(s.t, 2, wc.ID)
}

func (s *side) heard() string {
	s.t.Helper()
	wc := s.completion()
	require.Equal(s.t, verbs.Success, wc.Status)
	require.EqualValues(s.t, 1, wc.ID)
	return string(s.arena.Bytes()[:wc.ByteLen])
}

var param = verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7, PrivateData: []byte("from the active side")}

func resolveSide(t testing.TB, p *Provider, to netip.AddrPort) *side {
	t.Helper()
	id, err := p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to})
	require.NoError(t, err)
	return newSide(t, id)
}

func mustListen(t testing.TB, p *Provider, at netip.AddrPort, change func(*verbs.ListenAttr)) verbs.Listener {
	t.Helper()
	attr := &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at}
	if change != nil {
		change(attr)
	}
	l, err := p.Listen(context.Background(), attr)
	require.NoError(t, err)
	return l
}

// accept takes the next request and accepts it.
func accept(t testing.TB, l verbs.Listener) *side {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	id, err := l.GetRequest(ctx)
	require.NoError(t, err)
	s := newSide(t, id)
	require.NoError(t, id.Accept(&verbs.ConnParam{RNRRetryCount: 7, PrivateData: []byte("from the passive side")}))
	return s
}

// dial connects a side in the background.
func (s *side) dial(ctx context.Context) func() error {
	ch := make(chan error, 1)
	go func() {
		_, err := s.id.Connect(ctx, &param)
		ch <- err
	}()
	return func() error { return <-ch }
}

func background() context.Context { return context.Background() }

// cmNet is two hosts with a provider each.
type cmNet struct {
	*simnet.Network
	a, b *Provider
}

func newCMNet(o simnet.Options) *cmNet {
	n := simnet.New(1, o)
	return &cmNet{
		n, New(&Config{Open: n.Host(addrA, addrA6).Open}), New(&Config{Open: n.Host(addrB, addrB6).Open}),
	}
}

// connect makes a connection from a to b.
func (n *cmNet) connect(t testing.TB, l verbs.Listener) (x, y *side) {
	t.Helper()
	x = resolveSide(t, n.a, l.Addr())
	done := x.dial(background())
	y = accept(t, l)
	require.NoError(t, done())
	return x, y
}

// madOf returns the datagram in a packet, or nil.
func madOf(data []byte) []byte {
	var h wire.Packet
	if h.Decode(data) != nil || h.Opcode != wire.UDSendOnly || h.DestQP != wire.QPNGSI {
		return nil
	}
	return h.Payload
}

// isAttr is a filter for datagrams of a kind.
func isAttr(a ibcm.Attr) func(*simnet.Frame) bool {
	return func(f *simnet.Frame) bool {
		d, ok := ibcm.ParseDest(madOf(f.Data))
		return ok && d.Attr == a
	}
}

// unused checks that nothing holds the provider's device any more, perhaps
// after what is done in the background.
func unused(t testing.TB, ps ...*Provider) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, p := range ps {
		require.NoError(t, p.Drain(ctx))
		require.Eventually(t, func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.inst == nil
		}, 20*time.Second, time.Millisecond, "%s", p.holders())
	}
}

func (p *Provider) holders() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inst == nil {
		return "closed"
	}
	return fmt.Sprintf("held %d times", p.inst.dev.refs.Load())
}
