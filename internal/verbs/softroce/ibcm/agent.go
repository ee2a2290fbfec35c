package ibcm

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Clock tells the time and runs functions later, each on a goroutine of its own.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a function that will run.
type Timer interface{ Stop() bool }

// Config are the parameters of an [Agent].
type Config struct {
	Clock Clock
	Rand  func() uint64
	Slot  uint8 // the high 8 bits of the agent's communication IDs

	// Send sends one datagram. attempt counts how often the message was sent
	// before: another attempt is best made on ways that were not used yet. It is negative
	// where one datagram must do: for an answer that was asked for again, or one to a peer that has
	// shown nothing but a request yet. mad does not change
	// afterwards. It is called without lock and may call back.
	Send func(p Path, mad []byte, attempt int) error

	// Request is asked about each new connection request, without lock. It
	// sets the handler of a connection that it takes.
	Request func(c *Conn, q *REQ) Verdict

	// Lookup is asked about each new request for a datagram service, without lock. Its verdict is
	// Taken, Dropped or the status of the SIDR_REP. Nil: there are no such services.
	Lookup func(r *LookupRequest, q *SIDRREQ) Verdict

	// FirstRetry is the time until a message without answer is sent again; it
	// doubles each time, up to the interval of rdma_cm. 0: 200 ms.
	FirstRetry time.Duration
	// ConnectTimeout bounds a connect without any answer. 0: 98.304 s, that is
	// 16 times 6144 ms, which is what rdma_cm takes.
	ConnectTimeout time.Duration
	// LookupTimeout bounds a lookup without any answer. 0: 65.536 s, that is 16 times 4096 ms, which is what
	// rdma_cm takes.
	LookupTimeout time.Duration
	// DisconnectTimeout bounds the wait for the answer to a DREQ. 0: 3 s.
	DisconnectTimeout time.Duration
	// Linger is the time for which a connection that is over still counts as
	// unfinished because the peer may ask again what it was answered. 0: 250 ms.
	Linger time.Duration
	// MaxTimeWait bounds the time for which an ended connection is remembered. 0: 4 s.
	MaxTimeWait time.Duration
	// MaxHalfOpen bounds the requests that are not yet connections, and the
	// connections that are remembered after their end. 0: 4096.
	MaxHalfOpen int
}

const (
	reqInterval    = 6144 * time.Millisecond // 2*2^(18-8) + 2^(20-8) ms
	mraService     = 21                      // code of the patience an MRA asks for: 8.2 s
	maxMRAService  = 24                      // of the patience that a peer is granted: rdma_cm's own
	defaultRetry   = 200 * time.Millisecond
	defaultConnect = (maxCMRetries + 1) * reqInterval
	defaultLookup  = (maxCMRetries + 1) * sidrInterval
	defaultDREQ    = 3 * time.Second
	defaultLinger  = 250 * time.Millisecond
	defaultWait    = 4 * time.Second
	rejectedWait   = 7 * time.Second // longer than the interval of REQs
	defaultHalf    = 4096

	// A REQ may be forged, and each answer to it hits whom it names. So one that stays unanswered
	// is repeated so often by itself, and beyond the first time on one way only, while each REQ that comes again
	// draws one more. With the REJ or DREQ at the end that is less than the 16 REPs of rdma_cm.
	maxREPs = 7
	// loneDREQs is the same for the end of a connection of whose peer nothing but a REQ was seen.
	loneDREQs = 1
	loneWait  = time.Second

	// A REQ to another host is first repeated after farRetry, and so often on one way.
	farRetry  = time.Second
	farSingle = 2

	// With more than this part of MaxHalfOpen half-open, peers get less time to answer a REP.
	crowdPart     = 32
	crowdPatience = 3 * time.Second
)

// Verdict is what becomes of a connection request: Taken, Dropped, or the
// reason of the REJ that answers it.
type Verdict int

const (
	Taken   Verdict = 0
	Dropped Verdict = -1 // without answer, and without memory: the next REQ is a new one
)

// Reasons of a REJ that the state machine itself gives (IBTA 12.6.7.2).
const (
	ReasonNoQP             = 1
	ReasonTimeout          = 4
	ReasonInvalidCommID    = 6
	ReasonInvalidServiceID = 8
	ReasonInvalidTransport = 9
	ReasonStale            = 10
	ReasonInvalidGID       = 12
	ReasonInvalidMTU       = 26
	ReasonConsumer         = 28
)

// Stats counts what an [Agent] received.
type Stats struct {
	Malformed     uint64 // no datagram of the CM, or one with impossible contents
	Unmatched     uint64 // about no connection of the agent, or not from its peer
	DuplicateREQs uint64
	StaleREQs     uint64
	DroppedREQs   uint64 // beyond MaxHalfOpen, or by verdict
}

// Agent is the communication manager of one process on one device.
type Agent struct {
	cfg  Config
	guid uint64

	mu       sync.Mutex
	closed   bool
	conns    map[uint32]*Conn  // by this side's communication ID
	requests map[peerID]*Conn  // passive ones, by the peer's
	qps      map[peerQPN]*Conn // live ones, by the peer's queue pair
	halfOpen int
	ended    int // connections that are only remembered
	stats    Stats

	lookups        map[uint32]*Lookup // by request ID
	lookedUp       map[lookupID]*LookupRequest
	lookupsWaiting int // of lookedUp, those not answered
}

// peerID is how a repeated REQ is known.
type peerID struct {
	addr netip.Addr
	guid uint64
	id   uint32
}

// peerQPN is how a stale connection is known. With a GUID alone two hosts with
// one MAC, as virtual machines may be, would cut each other's connections.
type peerQPN struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

// NewAgent returns an agent with a GUID of its own: one that outlived its
// process would make peers take new connections for old ones.
func NewAgent(cfg Config) *Agent {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&cfg.FirstRetry, defaultRetry)
	def(&cfg.ConnectTimeout, defaultConnect)
	def(&cfg.LookupTimeout, defaultLookup)
	def(&cfg.DisconnectTimeout, defaultDREQ)
	def(&cfg.Linger, defaultLinger)
	def(&cfg.MaxTimeWait, defaultWait)
	if cfg.MaxHalfOpen == 0 {
		cfg.MaxHalfOpen = defaultHalf
	}
	return &Agent{
		cfg: cfg, guid: newGUID(cfg.Rand),
		conns: map[uint32]*Conn{}, requests: map[peerID]*Conn{}, qps: map[peerQPN]*Conn{},
		lookups: map[uint32]*Lookup{}, lookedUp: map[lookupID]*LookupRequest{},
	}
}

// GUID is the channel adapter GUID that the agent's messages carry.
func (a *Agent) GUID() uint64 { return a.guid }

// Stats returns the counters.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Close forgets every connection without a word to anyone. No event follows
// one that is under way.
func (a *Agent) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, c := range a.conns {
		c.stopTimer()
		c.queue = nil
	}
	for _, l := range a.lookups {
		l.over = true
		l.timer.Stop()
	}
	for _, r := range a.lookedUp {
		if r.timer != nil {
			r.timer.Stop()
		}
	}
	clear(a.lookups)
	clear(a.lookedUp)
	clear(a.conns)
	clear(a.requests)
	clear(a.qps)
}

// work is what a step of the state machine leaves to be done without lock.
type work struct {
	sends   []outgoing
	deliver []*Conn
	calls   []func()
}

type outgoing struct {
	path    Path
	mad     *[MADSize]byte
	attempt int
	err     *error // where an error goes, under the lock; nil: nowhere
}

// send sends a datagram. c is told of an error, if it is not nil.
func (w *work) send(p Path, m *[MADSize]byte, attempt int, c *Conn) {
	o := outgoing{path: p, mad: m, attempt: attempt}
	if c != nil {
		o.err = &c.sendErr
	}
	w.sends = append(w.sends, o)
}

// finish unlocks the agent and does the work.
func (a *Agent) finish(w *work) {
	a.mu.Unlock()
	for i := range w.sends {
		o := &w.sends[i]
		if err := a.cfg.Send(o.path, o.mad[:], o.attempt); err != nil && o.err != nil {
			a.mu.Lock()
			*o.err = err
			a.mu.Unlock()
		}
	}
	for _, c := range w.deliver {
		c.runHandler()
	}
	for _, f := range w.calls {
		f()
	}
}

// newID returns a communication or request ID that is not in use.
func (a *Agent) newID() uint32 {
	for {
		id := uint32(a.cfg.Slot)<<24 | uint32(a.cfg.Rand())&(1<<24-1)
		if a.conns[id] == nil && a.lookups[id] == nil && id != 0 {
			return id
		}
	}
}

var errClosed = net.ErrClosed

// ErrState is the error of a step that the state of the connection does not
// allow, because the peer gave up, say.
var ErrState = errors.New("ibcm: not in this state of the connection")

// Connect sends a REQ. The connection's handler is called with what comes of
// it, perhaps before Connect returns. The first send's error is Connect's.
func (a *Agent) Connect(p *ConnectParam, handler func(Event)) (*Conn, error) {
	c := &Conn{
		a: a, active: true, path: p.Path, handler: handler, state: reqSent,
		localQPN: p.QPN, service: p.ServiceID, ackTimeout: p.localACKTimeout(), respTimeout: responseTimeout,
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil, errClosed
	}
	c.id, c.tid = a.newID(), a.cfg.Rand()
	q, err := p.req(c.id, a.guid)
	if err != nil {
		a.mu.Unlock()
		return nil, err
	}
	a.conns[c.id] = c
	c.patience = p.Timeout
	if c.patience == 0 {
		c.patience = a.cfg.ConnectTimeout
	}
	if p.Far {
		c.single = farSingle
	}
	c.startRetries(Encode(NewHeader(c.tid, q), q), reqInterval, c.patience)
	mad := c.mad
	a.mu.Unlock()
	if err := a.cfg.Send(c.path, mad[:], 0); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if c.state == reqSent {
			c.forget()
			return nil, err
		}
	}
	return c, nil
}
