package ibcm

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// bubbleClock is package time, which testing/synctest makes exact.
type bubbleClock struct{}

func (bubbleClock) Now() time.Time                            { return time.Now() }
func (bubbleClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

var (
	addrA = netip.MustParseAddr("10.7.0.1")
	addrB = netip.MustParseAddr("10.7.0.2")
)

const latency = time.Millisecond

// wire joins agents by address. A datagram takes latency.
type wire struct {
	mu     sync.Mutex
	start  time.Time
	agents map[netip.Addr]*Agent
	log    []string // "time from attribute attempt"
	sent   map[Attr]int
	last   []byte

	// fate says for each datagram, numbered per attribute from 0, after which
	// times it arrives; nil: once after latency.
	fate func(a Attr, n int) []time.Duration
}

func newWire() *wire {
	return &wire{start: time.Now(), agents: map[netip.Addr]*Agent{}, sent: map[Attr]int{}}
}

// lose makes the wire lose the first n datagrams of kind a.
func (n *wire) lose(a Attr, count int) {
	n.fate = func(b Attr, i int) []time.Duration {
		if a == b && i < count {
			return nil
		}
		return []time.Duration{latency}
	}
}

func (n *wire) send(p Path, mad []byte, attempt int) error {
	h, _, err := Decode(mad)
	if err != nil {
		panic(err)
	}
	n.mu.Lock()
	n.log = append(n.log, fmt.Sprintf("%v %v %v %d", time.Since(n.start), p.Local, h.AttributeID, attempt))
	n.last = mad
	i := n.sent[h.AttributeID]
	n.sent[h.AttributeID]++
	when := []time.Duration{latency}
	if n.fate != nil {
		when = n.fate(h.AttributeID, i)
	}
	n.mu.Unlock()
	for _, d := range when {
		time.AfterFunc(d, func() {
			n.mu.Lock()
			a := n.agents[p.Remote]
			n.mu.Unlock()
			if a != nil {
				a.HandleMAD(Path{Local: p.Remote, Remote: p.Local}, mad)
			}
		})
	}
	return nil
}

func (n *wire) attrs() (as []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append(as, n.log...)
}

func (n *wire) count(a Attr) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sent[a]
}

// end is one end of a connection with its events.
type end struct {
	mu     sync.Mutex
	c      *Conn
	req    *REQ
	events []Event
	on     func(e Event) // runs in the handler
}

func (e *end) handle(ev Event) {
	e.mu.Lock()
	e.events = append(e.events, ev)
	on := e.on
	e.mu.Unlock()
	if on != nil {
		on(ev)
	}
}

func (e *end) types() (ts []EventType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		ts = append(ts, ev.Type)
	}
	return ts
}

// event returns the first event of a type.
func (e *end) event(typ EventType) *Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.events {
		if e.events[i].Type == typ {
			return &e.events[i]
		}
	}
	return nil
}

func (c *Conn) currentState() state {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	return c.state
}

// host is an agent on the wire that takes what is asked.
type host struct {
	*Agent
	addr    netip.Addr
	mu      sync.Mutex
	passive []*end
	verdict Verdict
	accept  bool // at once
}

func (n *wire) host(addr netip.Addr, seed uint64, change func(*Config)) *host {
	h := &host{addr: addr, accept: true}
	cfg := Config{
		Clock: bubbleClock{}, Send: n.send, Slot: byte(seed),
		Rand: rand.New(&lockedSource{src: rand.NewPCG(seed, seed)}).Uint64,
		Request: func(c *Conn, q *REQ) Verdict {
			h.mu.Lock()
			v, accept := h.verdict, h.accept
			e := &end{c: c, req: q}
			if v == Taken {
				h.passive = append(h.passive, e)
			}
			h.mu.Unlock()
			c.SetHandler(e.handle)
			if v == Taken && accept {
				time.AfterFunc(0, func() { c.Accept(acceptParam(q)) })
			}
			return v
		},
	}
	if change != nil {
		change(&cfg)
	}
	h.Agent = NewAgent(cfg)
	n.agents[addr] = h.Agent
	return h
}

type lockedSource struct {
	mu  sync.Mutex
	src rand.Source
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.src.Uint64()
}

func acceptParam(q *REQ) *AcceptParam {
	return &AcceptParam{
		QPN: 0x020000 | q.LocalQPN&0xff, StartingPSN: 0xbbbbbb, ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: 6,
		PrivateData: []byte("welcome"),
	}
}

func (h *host) taken(i int) *end {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i >= len(h.passive) {
		return nil
	}
	return h.passive[i]
}

// connect starts a connect to b; the end gets ready at once when the REP comes.
func (h *host) connect(t *testing.T, b netip.Addr, change func(*ConnectParam)) *end {
	t.Helper()
	p := &ConnectParam{
		Path: Path{Local: h.addr, Remote: b}, ServiceID: ServiceID(0x106, 7174), SourcePort: 33232,
		QPN: 0x010011, StartingPSN: 0xaaaaaa, PathMTU: 3, ResponderResources: 3, InitiatorDepth: 2,
		RetryCount: 7, RNRRetryCount: 5, PrivateData: []byte("hello"),
	}
	if change != nil {
		change(p)
	}
	e := &end{}
	c, err := h.Connect(p, func(ev Event) {
		e.handle(ev)
		if ev.Type == EventReplied && e.on == nil {
			e.mu.Lock()
			c := e.c
			e.mu.Unlock()
			c.Ready()
		}
	})
	require.NoError(t, err)
	e.mu.Lock()
	e.c = c
	e.mu.Unlock()
	return e
}

// settle lets a second pass, which a connect without losses does not need.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// empty checks that an agent has forgotten everything.
func (h *host) empty(t *testing.T) {
	t.Helper()
	h.Agent.mu.Lock()
	defer h.Agent.mu.Unlock()
	require.Empty(t, h.conns)
	require.Empty(t, h.requests)
	require.Empty(t, h.qps)
	require.Zero(t, h.halfOpen)
	require.Zero(t, h.ended)
}

// known is the number of connections that an agent remembers.
func (h *host) known() int {
	h.Agent.mu.Lock()
	defer h.Agent.mu.Unlock()
	return len(h.conns)
}
