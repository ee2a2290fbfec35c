package ibcm

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
)

// state is a state of a connection (IBTA 12.9.5, 12.9.6).
type state uint8

const (
	idle state = iota // nothing to do with the agent any more
	// The active side's.
	reqSent
	mraReqRcvd // the peer asked for patience
	repRcvd    // until Ready
	// The passive side's.
	reqNew  // while Config.Request looks at it
	reqRcvd // until Accept or Reject
	repSent
	mraRepRcvd
	// Both sides'.
	established
	dreqSent
	timeWait
	rejected // refused by this side, which says so again if asked again
)

var stateNames = [...]string{
	"idle", "REQ sent", "MRA(REQ) received", "REP received", "new REQ", "REQ received", "REP sent",
	"MRA(REP) received", "established", "DREQ sent", "time wait", "rejected",
}

func (s state) String() string { return stateNames[s] }

// EventType tells what happened to a connection.
type EventType uint8

const (
	// EventReplied: a REP came. Ready or Close must follow.
	EventReplied EventType = iota + 1
	// EventRejected: the peer refused, or gave up.
	EventRejected
	// EventUnreachable: no answer to REQ or REP. Err says why.
	EventUnreachable
	// EventEstablished: the passive side's connection stands.
	EventEstablished
	// EventDisconnected: the connection is over. Err is nil if the peer ended
	// it or answered, ETIMEDOUT if it did not answer, ECONNRESET if it died.
	EventDisconnected
	// EventDone is the last event of a connection, and comes even after Close:
	// no datagram of it needs to be sent any more.
	EventDone
)

// Event is one event of a connection.
type Event struct {
	Type EventType
	REP  *REP // of EventReplied
	REJ  *REJ // of EventRejected
	Err  error
}

// Conn is one connection. Its methods may be called from handlers.
type Conn struct {
	a *Agent

	// Constant once the connection is known to anybody.
	id          uint32
	active      bool
	path        Path
	localQPN    uint32 // passive: set by Accept
	service     uint64 // active
	req         *REQ   // passive; until the connection stands
	tid         uint64
	ackTimeout  uint8 // code; length of the time-wait state
	respTimeout uint8 // code; time that a peer's answer may take

	// The rest is guarded by a.mu.
	state      state
	remoteID   uint32
	remoteGUID uint64
	remoteQPN  uint32

	timer    Timer
	gen      uint64 // of the timer in force
	mad      *[MADSize]byte
	attempt  int
	limit    int           // of attempts after the first; 0: none
	single   int           // so many of them on one way; then the first comes later too
	interval time.Duration // until the next attempt
	maxWait  time.Duration // limit of interval
	patience time.Duration // without a sign of the peer
	deadline time.Time
	sendErr  error // of the last attempt

	answer  *[MADSize]byte // to a repeated REP, DREQ or, if rejected, REQ
	answers int

	handler func(Event)
	queue   []Event
	busy    bool // a goroutine is in the handler, or Config.Request is
	muted   bool // closed: only EventDone is delivered
	over    bool // only EventDone is left
	done    bool

	halfOpen, ended bool // counted as such by the agent
}

// ID is this side's communication ID.
func (c *Conn) ID() uint32 { return c.id }

// Path is the way of the connection's datagrams.
func (c *Conn) Path() Path { return c.path }

// SetHandler sets the handler of a connection that Config.Request is looking at.
func (c *Conn) SetHandler(f func(Event)) { c.handler = f }

// RemoteQPN is the peer's queue pair, once it is known.
func (c *Conn) RemoteQPN() uint32 {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	return c.remoteQPN
}

// RemoteID is the peer's communication ID, once it is known.
func (c *Conn) RemoteID() uint32 {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	return c.remoteID
}

// Alive tells whether the connection is not over: it stands, or may come to.
func (c *Conn) Alive() bool {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	switch c.state {
	case idle, dreqSent, timeWait, rejected:
		return false
	}
	return !c.over
}

// Accept answers a request with a REP, perhaps before Config.Request returns
// [Taken] for it. The queue pair must be ready for the
// peer's packets: they may come before its RTU.
func (c *Conn) Accept(p *AcceptParam) error {
	var w work
	a := c.a
	a.mu.Lock()
	if c.state != reqRcvd && c.state != reqNew {
		defer a.mu.Unlock()
		return fmt.Errorf("%w: accept in state %s", ErrState, c.state)
	}
	r, err := p.rep(c.req, c.id, a.guid)
	if err != nil {
		a.mu.Unlock()
		return err
	}
	c.localQPN = p.QPN
	c.state = repSent
	// The peer says how long and how often; within reason.
	interval := min(max(Duration(c.respTimeout), time.Second), reqInterval)
	c.patience = min(time.Duration(max(c.req.MaxCMRetries, 4)+1)*interval, a.cfg.ConnectTimeout)
	if a.halfOpen > a.cfg.MaxHalfOpen/crowdPart {
		// Whoever asks without end and takes no answer must not keep others out.
		c.patience = min(c.patience, crowdPatience)
	}
	c.limit = maxREPs
	c.startRetries(Encode(NewHeader(c.tid, r), r), interval, c.patience)
	w.send(c.path, c.mad, 0, c)
	a.finish(&w)
	return nil
}

// Ready tells the peer, by RTU, that the queue pair is ready.
func (c *Conn) Ready() error {
	var w work
	a := c.a
	a.mu.Lock()
	if c.state != repRcvd {
		defer a.mu.Unlock()
		return fmt.Errorf("%w: ready in state %s", ErrState, c.state)
	}
	c.state = established
	m := &RTU{LocalCommID: c.id, RemoteCommID: c.remoteID}
	c.answer = Encode(NewHeader(c.tid, m), m)
	c.answers = 0
	w.send(c.path, c.answer, 0, nil)
	a.finish(&w)
	return nil
}

// CommEstablished tells that a packet of the peer reached the queue pair,
// which stands for an RTU that was lost or is late (IBTA 11.6.3.2).
func (c *Conn) CommEstablished() {
	var w work
	c.a.mu.Lock()
	if c.state == repSent || c.state == mraRepRcvd {
		c.establish(&w)
	}
	c.a.finish(&w)
}

// Reject refuses what the peer asked or offered.
func (c *Conn) Reject(reason uint16, ari, private []byte) error {
	var w work
	m := &REJ{Reason: reason}
	if len(ari) > len(m.ARI) || len(private) > len(m.PrivateData) {
		return fmt.Errorf("ibcm: %d and %d bytes of information in a REJ", len(ari), len(private))
	}
	m.RejectedInfoLength = uint8(len(ari))
	copy(m.ARI[:], ari)
	copy(m.PrivateData[:], private)
	c.a.mu.Lock()
	defer c.a.finish(&w)
	switch c.state {
	case reqNew, reqRcvd, repRcvd:
		c.refuse(m, &w)
		return nil
	}
	return fmt.Errorf("%w: reject in state %s", ErrState, c.state)
}

// Disconnect ends the connection, in whatever state it is: a request is
// rejected, a connect abandoned, a connection told by DREQ to be over.
// EventDisconnected follows only if there was a connection.
func (c *Conn) Disconnect() {
	var w work
	c.a.mu.Lock()
	c.disconnect(&w)
	c.a.finish(&w)
}

// Close is Disconnect, and of later events only EventDone is delivered.
func (c *Conn) Close() {
	var w work
	c.a.mu.Lock()
	c.muted = true
	c.disconnect(&w)
	c.a.finish(&w)
}

// Abort is Disconnect for a connection that is broken: the peer must not take what
// it got for everything. It is told by a REJ, which asks for no answer.
func (c *Conn) Abort() {
	var w work
	a := c.a
	a.mu.Lock()
	defer a.finish(&w)
	switch c.state {
	case established, repSent, mraRepRcvd:
	default:
		c.disconnect(&w)
		return
	}
	m := &REJ{LocalCommID: c.id, RemoteCommID: c.remoteID, MessageRejected: AboutOther, Reason: ReasonTimeout}
	w.send(c.path, Encode(NewHeader(c.tid, m), m), abortAttempt, nil)
	c.emit(Event{Type: EventDisconnected}, &w)
	c.enterTimeWait(false, &w)
}

// abortAttempt makes a message that is sent once go like one that was repeated, several ways.
const abortAttempt = 1

// PeerDied ends the connection without a word to the peer, which is known to
// be gone.
func (c *Conn) PeerDied(err error) {
	var w work
	c.a.mu.Lock()
	defer c.a.finish(&w)
	switch c.state {
	case established, repRcvd, dreqSent:
		c.emit(Event{Type: EventDisconnected, Err: err}, &w)
	case reqSent, mraReqRcvd, reqRcvd, reqNew, repSent, mraRepRcvd:
		c.emit(Event{Type: EventUnreachable, Err: err}, &w)
	default:
		return
	}
	c.enterTimeWait(false, &w)
}

func (c *Conn) disconnect(w *work) {
	switch c.state {
	case established, repSent, mraRepRcvd:
		c.sendDREQ(w)
	case reqSent, mraReqRcvd:
		c.abandon(w)
		c.enterTimeWait(true, w)
	case reqNew, reqRcvd, repRcvd:
		c.refuse(&REJ{Reason: ReasonConsumer}, w)
	}
}

func (c *Conn) sendDREQ(w *work) {
	c.leaveHalfOpen()
	c.leaveQPs() // a peer that uses its queue pair again knows that this connection is over
	patience := c.a.cfg.DisconnectTimeout
	c.limit, c.single = 0, 0
	if c.state == repSent {
		c.limit, patience = loneDREQs, min(patience, loneWait)
	}
	c.state = dreqSent
	m := &DREQ{LocalCommID: c.id, RemoteCommID: c.remoteID, RemoteQPN: c.remoteQPN}
	c.startRetries(Encode(NewHeader(c.a.cfg.Rand(), m), m), Duration(responseTimeout), patience)
	w.send(c.path, c.mad, 0, c)
}

// abandon tells the peer that this side waits no more. The peer finds the
// connection by the GUID and the communication ID: it may have no other name
// that this side knows (IBTA 12.6.7.2).
func (c *Conn) abandon(w *work) {
	m := &REJ{
		LocalCommID: c.id, RemoteCommID: c.remoteID, MessageRejected: AboutOther,
		Reason: ReasonTimeout, RejectedInfoLength: 8,
	}
	binary.BigEndian.PutUint64(m.ARI[:], c.a.guid)
	if c.remoteID == 0 {
		binary.BigEndian.PutUint64(m.ARI[ariService:], c.service)
	}
	w.send(c.path, Encode(NewHeader(c.tid, m), m), 0, nil)
}

// ariService is where a REJ that takes back a REQ also says which service it was
// for, behind the information that IBTA defines: processes that share a port
// have no other way to tell whose it is.
const ariService = 8

// refuse sends m, which names the reason.
func (c *Conn) refuse(m *REJ, w *work) {
	m.LocalCommID, m.RemoteCommID = c.id, c.remoteID
	if c.state == repRcvd {
		m.MessageRejected = AboutREP
		w.send(c.path, Encode(NewHeader(c.tid, m), m), 0, nil)
		c.enterTimeWait(true, w)
		return
	}
	m.MessageRejected = AboutREQ
	c.answer, c.answers = Encode(NewHeader(c.tid, m), m), 0
	w.send(c.path, c.answer, 0, nil)
	c.end(rejected, rejectedWait, true, w)
}

func (c *Conn) establish(w *work) {
	c.stopTimer()
	c.leaveHalfOpen()
	c.state = established
	c.mad, c.req = nil, nil
	c.emit(Event{Type: EventEstablished}, w)
}

// enterTimeWait keeps the communication ID out of use for a while. owed tells
// that the peer may ask again for what it was told last.
func (c *Conn) enterTimeWait(owed bool, w *work) {
	c.end(timeWait, min(Duration(c.ackTimeout), c.a.cfg.MaxTimeWait), owed, w)
}

// end makes the agent forget the connection after d.
func (c *Conn) end(s state, d time.Duration, owed bool, w *work) {
	c.stopTimer()
	c.leaveHalfOpen()
	c.leaveQPs()
	c.state = s
	if !c.ended {
		c.ended = true
		c.a.ended++
	}
	if c.a.ended > c.a.cfg.MaxHalfOpen {
		d, owed = 0, false
	}
	linger := min(c.a.cfg.Linger, d)
	if !owed {
		linger = 0
		c.finished(w)
	}
	c.after(d-linger, linger)
}

// after runs down the times of an ended connection: first the one in which it
// is unfinished, then the one in which it is only remembered.
func (c *Conn) after(remember, linger time.Duration) {
	switch {
	case linger > 0:
		c.startTimer(linger, func(w *work) {
			c.finished(w)
			c.after(remember, 0)
		})
	case remember > 0:
		c.startTimer(remember, func(*work) { c.forget() })
	default:
		c.forget()
	}
}

// forget takes the connection out of the agent.
func (c *Conn) forget() {
	a := c.a
	c.stopTimer()
	c.leaveHalfOpen()
	c.leaveQPs()
	if c.ended {
		c.ended = false
		a.ended--
	}
	c.state = idle
	if a.conns[c.id] == c {
		delete(a.conns, c.id)
	}
	if k := c.peerID(); a.requests[k] == c {
		delete(a.requests, k)
	}
}

func (c *Conn) peerID() peerID {
	return peerID{c.path.Remote.WithZone(""), c.remoteGUID, c.remoteID}
}

func (c *Conn) peerQPN() peerQPN {
	return peerQPN{c.path.Remote.WithZone(""), c.remoteGUID, c.remoteQPN}
}

func (c *Conn) leaveQPs() {
	if k := c.peerQPN(); c.a.qps[k] == c {
		delete(c.a.qps, k)
	}
}

func (c *Conn) leaveHalfOpen() {
	if c.halfOpen {
		c.halfOpen = false
		c.a.halfOpen--
	}
}

// emit queues an event for the handler.
func (c *Conn) emit(e Event, w *work) {
	if c.a.closed || c.done || (c.over || c.muted) && e.Type != EventDone {
		return
	}
	switch e.Type {
	case EventRejected, EventUnreachable, EventDisconnected:
		c.over = true
	}
	c.queue = append(c.queue, e)
	w.deliver = append(w.deliver, c)
}

func (c *Conn) finished(w *work) {
	c.emit(Event{Type: EventDone}, w)
	c.done = true
}

// runHandler delivers the events of the queue, unless another goroutine is
// about it, which then delivers these too.
func (c *Conn) runHandler() {
	a := c.a
	a.mu.Lock()
	if c.busy {
		a.mu.Unlock()
		return
	}
	c.busy = true
	for len(c.queue) > 0 {
		e := c.queue[0]
		c.queue = c.queue[1:]
		skip := c.muted && e.Type != EventDone
		h := c.handler
		a.mu.Unlock()
		if h != nil && !skip {
			h(e)
		}
		a.mu.Lock()
	}
	c.busy = false
	a.mu.Unlock()
}

// stopTimer makes a timer that is about to run void.
func (c *Conn) stopTimer() {
	c.gen++
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// startTimer runs f after d, under the lock, unless another timer takes its place.
func (c *Conn) startTimer(d time.Duration, f func(w *work)) {
	c.stopTimer()
	gen := c.gen
	c.timer = c.a.cfg.Clock.AfterFunc(d, func() {
		var w work
		c.a.mu.Lock()
		if c.gen == gen && !c.a.closed {
			f(&w)
		}
		c.a.finish(&w)
	})
}

// startRetries makes mad, which the caller sends, be sent again until an
// answer stops the timer or the patience ends.
func (c *Conn) startRetries(mad *[MADSize]byte, maxWait, patience time.Duration) {
	c.mad, c.attempt, c.sendErr = mad, 0, nil
	c.maxWait = maxWait
	c.interval = min(c.a.cfg.FirstRetry, maxWait)
	if c.single > 0 {
		c.interval = max(c.interval, min(farRetry, maxWait))
	}
	c.deadline = c.a.cfg.Clock.Now().Add(patience)
	c.retryIn(c.interval)
}

func (c *Conn) retryIn(d time.Duration) {
	c.startTimer(min(d, c.deadline.Sub(c.a.cfg.Clock.Now())), c.retry)
}

func (c *Conn) retry(w *work) {
	if !c.a.cfg.Clock.Now().Before(c.deadline) {
		c.expire(w)
		return
	}
	c.attempt++
	way := c.attempt
	if way <= c.single || c.limit != 0 && way > 1 {
		way = -way
	}
	w.send(c.path, c.mad, way, c)
	c.interval = min(2*c.interval, c.maxWait)
	if c.attempt == c.limit {
		c.interval = c.deadline.Sub(c.a.cfg.Clock.Now())
	}
	c.retryIn(c.interval)
}

// expire ends a wait in vain.
func (c *Conn) expire(w *work) {
	err := c.sendErr
	if err == nil {
		err = syscall.ETIMEDOUT
	}
	switch c.state {
	case reqSent, mraReqRcvd, repSent, mraRepRcvd:
		c.abandon(w)
		c.emit(Event{Type: EventUnreachable, Err: err}, w)
	case dreqSent:
		c.emit(Event{Type: EventDisconnected, Err: err}, w)
	}
	c.enterTimeWait(false, w)
}

// bePatient answers an MRA: the peer is alive and wants time.
func (c *Conn) bePatient(service uint8) {
	wait := Duration(min(service, maxMRAService)) + Duration(min(c.respTimeout, maxMRAService))
	c.deadline = c.a.cfg.Clock.Now().Add(wait + c.patience)
	c.interval = c.maxWait
	c.retryIn(wait)
}
