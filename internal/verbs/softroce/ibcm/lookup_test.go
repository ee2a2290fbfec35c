package ibcm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const udaddyPort = 7174

// found is what came of a lookup.
type found struct {
	mu  sync.Mutex
	rep *SIDRREP
	err error
	n   int
	at  time.Time
}

func (f *found) done(r *SIDRREP, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep, f.err, f.at = r, err, time.Now()
	f.n++
}

func (h *host) lookup(t *testing.T, to netip.Addr, change func(*LookupParam)) (*Lookup, *found) {
	t.Helper()
	p := &LookupParam{
		Path: Path{Local: h.addr, Remote: to}, ServiceID: ServiceID(0x111, udaddyPort), SourcePort: 33232, PrivateData: []byte("who?"),
	}
	if change != nil {
		change(p)
	}
	f := new(found)
	l, err := h.Lookup(p, f.done)
	require.NoError(t, err)
	return l, f
}

// service is the passive side of lookups.
type service struct {
	mu       sync.Mutex
	requests []*LookupRequest
	messages []*SIDRREQ
	verdict  Verdict
	answer   *AnswerParam // at once, if not nil
}

func (s *service) on(c *Config) {
	c.Lookup = func(r *LookupRequest, m *SIDRREQ) Verdict {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests, s.messages = append(s.requests, r), append(s.messages, m)
		if s.answer != nil {
			if err := r.Answer(s.answer); err != nil {
				panic(err)
			}
		}
		return s.verdict
	}
}

func (h *host) nothing(t *testing.T) {
	t.Helper()
	h.Agent.mu.Lock()
	defer h.Agent.mu.Unlock()
	require.Empty(t, h.lookups)
	require.Empty(t, h.lookedUp)
	require.Zero(t, h.lookupsWaiting)
}

// The messages are those that rdma_cm sends.
func TestLookupBytes(t *testing.T) {
	ask, answer, refusal := capturedMAD(t, "roce-udaddy-v4:5"), capturedMAD(t, "roce-udaddy-v4:6"), capturedMAD(t, "roce-sidr-rej-v4:2")
	var sent [][]byte
	random := []uint64{0, 0xf5f134, 0x0000000234f1f53d} // GUID, request ID, transaction ID
	cfg := Config{
		Clock: bubbleClock{}, Slot: 0x3d,
		Rand: func() uint64 { r := random[0]; random = random[1:]; return r },
		Send: func(_ Path, mad []byte, _ int) error { sent = append(sent, mad); return nil },
	}
	a := NewAgent(cfg)
	h, err := ParseIPHeader(ask.mad[headerSize+16:])
	require.NoError(t, err)
	f := new(found)
	l, err := a.Lookup(&LookupParam{
		Path: Path{Local: ask.src, Remote: ask.dst}, ServiceID: ServiceID(0x111, udaddyPort), SourcePort: h.Source.Port(),
	}, f.done)
	require.NoError(t, err)
	require.Equal(t, [][]byte{ask.mad}, sent)
	a.HandleMAD(Path{Local: answer.dst, Remote: answer.src}, answer.mad)
	require.NoError(t, f.err)
	require.Equal(t, uint32(0x13), f.rep.QPN)
	require.Equal(t, uint32(0x01234567), f.rep.QKey)
	l.Cancel()

	for _, c := range []struct {
		verdict Verdict
		answer  AnswerParam
		want    []byte
	}{
		{Taken, AnswerParam{QPN: 0x13, QKey: 0x01234567}, answer.mad},
		{SIDRUnsupported, AnswerParam{}, refusal.mad},
		{Taken, AnswerParam{Status: SIDRUnsupported, QPN: 5, QKey: 6}, refusal.mad},
	} {
		sent = nil
		s := service{verdict: c.verdict}
		if c.verdict == Taken {
			s.answer = &c.answer
		}
		random = []uint64{0}
		s.on(&cfg)
		b := NewAgent(cfg)
		b.HandleMAD(Path{Local: ask.dst, Remote: ask.src}, ask.mad)
		want := append([]byte(nil), c.want...)
		copy(want[8:16], ask.mad[8:16])                                       // transaction ID
		copy(want[headerSize:headerSize+4], ask.mad[headerSize:headerSize+4]) // request ID
		require.Equal(t, want, sent[0])
		b.Close()
	}
}

func TestLookupFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		s := &service{}
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, s.on)
		_, f := a.lookup(t, addrB, nil)
		synctest.Wait()
		pass(2 * latency)
		require.Len(t, s.requests, 1)
		require.Equal(t, "who?", string(s.messages[0].PrivateData[IPHeaderSize:][:4]))
		pass(150 * time.Millisecond) // the application takes its time
		require.NoError(t, s.requests[0].Answer(&AnswerParam{QPN: 0x020304, QKey: 5, PrivateData: []byte("I")}))
		require.ErrorIs(t, s.requests[0].Answer(&AnswerParam{QPN: 0x020304}), ErrState)
		pass(2 * latency)
		require.Equal(t, 1, f.n)
		require.NoError(t, f.err)
		require.Equal(t, []any{uint8(0), uint32(0x020304), uint32(5), byte('I')},
			[]any{f.rep.Status, f.rep.QPN, f.rep.QKey, f.rep.PrivateData[0]})
		pass(answeredWait)
		a.nothing(t)
		b.nothing(t)
	})
}

// Losses of either message: the request comes again, and it is one request all the same.
func TestLookupLoss(t *testing.T) {
	for _, attr := range []Attr{AttrSIDRREQ, AttrSIDRREP} {
		synctest.Test(t, func(t *testing.T) {
			n := newWire()
			n.lose(attr, 2)
			s := &service{answer: &AnswerParam{QPN: 77}}
			a, b := n.host(addrA, 1, nil), n.host(addrB, 2, s.on)
			start := time.Now()
			_, f := a.lookup(t, addrB, nil)
			pass(2 * time.Second)
			require.Equal(t, 1, f.n)
			require.NoError(t, f.err)
			require.Equal(t, 600*time.Millisecond+2*latency, f.at.Sub(start), "200 ms and 400 ms")
			require.Len(t, s.requests, 1)
			pass(answeredWait)
			a.nothing(t)
			b.nothing(t)
		})
	}
}

// While the application has not answered, a repetition draws nothing.
func TestLookupSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		s := &service{}
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, s.on)
		_, f := a.lookup(t, addrB, nil)
		pass(20 * time.Second)
		require.Len(t, s.requests, 1)
		require.Zero(t, n.count(AttrSIDRREP))
		require.NoError(t, s.requests[0].Answer(&AnswerParam{Status: SIDRRejected, PrivateData: []byte("no")}))
		pass(2 * latency)
		require.Equal(t, uint8(SIDRRejected), f.rep.Status)
		require.Zero(t, f.rep.QPN)
		require.Equal(t, "no", string(f.rep.PrivateData[:2]))
		pass(answeredWait)
		a.nothing(t)
		b.nothing(t)
	})
}

func TestLookupTimeout(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*LookupParam)
		after  time.Duration
		sent   int
	}{
		// 0.2, 0.4 ... 3.2 s, then every 4.096 s.
		{"Near", nil, 16 * 4096 * time.Millisecond, 20},
		{"Far", func(p *LookupParam) { p.Far = true }, 16 * 4096 * time.Millisecond, 18},
		{"Short", func(p *LookupParam) { p.Timeout = time.Second }, time.Second, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWire()
				a := n.host(addrA, 1, nil)
				start := time.Now()
				_, f := a.lookup(t, addrB, c.change)
				pass(2 * time.Minute)
				require.ErrorIs(t, f.err, syscall.ETIMEDOUT)
				require.Equal(t, c.after, f.at.Sub(start))
				require.Equal(t, c.sent, n.count(AttrSIDRREQ), "%v", n.attrs())
				a.nothing(t)
			})
		})
	}
}

func TestLookupCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a := n.host(addrA, 1, nil)
		l, f := a.lookup(t, addrB, nil)
		pass(time.Second)
		l.Cancel()
		l.Cancel()
		sent := n.count(AttrSIDRREQ)
		pass(time.Minute)
		require.Zero(t, f.n)
		require.Equal(t, sent, n.count(AttrSIDRREQ))
		a.nothing(t)
		// And the end of the agent.
		a.lookup(t, addrB, nil)
		a.Close()
		pass(2 * time.Minute)
		require.Equal(t, sent+1, n.count(AttrSIDRREQ))
		_, err := a.Lookup(&LookupParam{Path: Path{Local: addrA, Remote: addrB}}, nil)
		require.ErrorIs(t, err, errClosed)
	})
}

func TestLookupSendError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("no way")
		var n atomic.Int32
		a := NewAgent(Config{Clock: bubbleClock{}, Rand: rand.Uint64, Send: func(Path, []byte, int) error {
			if n.Add(1) > 1 {
				return cause
			}
			return nil
		}})
		p := &LookupParam{Path: Path{Local: addrA, Remote: addrB}, ServiceID: 1 << 16}
		f := new(found)
		_, err := a.Lookup(p, f.done)
		require.NoError(t, err)
		pass(2 * time.Minute)
		require.Equal(t, cause, f.err, "the cause rather than the timeout")
		_, err = a.Lookup(p, f.done)
		require.Equal(t, cause, err, "the first send")
		require.Equal(t, 1, f.n)
		require.Empty(t, a.lookups)
		p.PrivateData = make([]byte, 181)
		_, err = a.Lookup(p, f.done)
		require.Error(t, err)
	})
}

// Answers that are not to the point do no harm.
func TestLookupForged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a := n.host(addrA, 1, nil)
		l, f := a.lookup(t, addrB, nil)
		good := SIDRREP{RequestID: l.id, ServiceID: l.service, QPN: 99, QKey: 1}
		say := func(from netip.Addr, tid uint64, change func(*SIDRREP)) {
			m := good
			if change != nil {
				change(&m)
			}
			a.HandleMAD(Path{Local: addrA, Remote: from}, Encode(NewHeader(tid, &m), &m)[:])
		}
		say(netip.MustParseAddr("10.7.0.9"), l.tid, nil)
		say(addrB, l.tid+1, nil)
		say(addrB, l.tid, func(m *SIDRREP) { m.RequestID++ })
		say(addrB, l.tid, func(m *SIDRREP) { m.ServiceID++ })
		require.EqualValues(t, 4, a.Stats().Unmatched)
		for _, qpn := range []uint32{0, 1, 0xffffff} {
			say(addrB, l.tid, func(m *SIDRREP) { m.QPN = qpn })
		}
		require.EqualValues(t, 3, a.Stats().Malformed)
		require.Zero(t, f.n)
		say(addrB, l.tid, nil)
		say(addrB, l.tid, nil)
		require.Equal(t, 1, f.n)
		require.Equal(t, uint32(99), f.rep.QPN)
		a.nothing(t)
	})
}

// A flood of requests takes no more memory than it may.
func TestLookupFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		s := &service{}
		b := n.host(addrB, 2, func(c *Config) {
			s.on(c)
			c.MaxHalfOpen = 8
		})
		ask := func(i int) {
			m := &SIDRREQ{RequestID: uint32(i), ServiceID: ServiceID(0x111, 1)}
			b.HandleMAD(Path{Local: addrB, Remote: addrA}, Encode(NewHeader(uint64(i), m), m)[:])
		}
		for i := range 20 {
			ask(i)
		}
		require.Len(t, s.requests, 8)
		require.EqualValues(t, 12, b.Stats().DroppedREQs)
		for i := range s.requests {
			require.NoError(t, s.requests[i].Answer(&AnswerParam{QPN: 9}))
		}
		s.answer = &AnswerParam{QPN: 10}
		for i := range 20 {
			ask(100 + i)
		}
		require.LessOrEqual(t, b.remembered(), 8)
		require.Equal(t, 28, n.count(AttrSIDRREP), "all are answered")
		s.answer, s.verdict = nil, Dropped
		ask(200)
		require.Equal(t, 28, n.count(AttrSIDRREP))
		require.EqualValues(t, 13, b.Stats().DroppedREQs)
		s.verdict = SIDRNoQP
		ask(200)
		require.Equal(t, 29, n.count(AttrSIDRREP))
		require.LessOrEqual(t, b.remembered(), 8)
		pass(answeredWait)
		synctest.Wait()
		b.nothing(t)
		for _, p := range []AnswerParam{{QPN: 1}, {QPN: 5, PrivateData: make([]byte, 137)}} {
			s.verdict = Taken
			ask(300)
			require.Error(t, s.requests[len(s.requests)-1].Answer(&p))
		}
	})
}

// pass lets time pass, and what falls into it be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *host) remembered() int {
	h.Agent.mu.Lock()
	defer h.Agent.mu.Unlock()
	return len(h.lookedUp)
}
