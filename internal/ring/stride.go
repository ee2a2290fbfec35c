package ring

import "time"

const (
	// strideLeast is how much a writer has staged without running dry before it is expected back soon.
	strideLeast = 16 << 20

	// strideTime is how long it is waited for. What it left unposted when it stopped is late by twice as much at most, and the stream
	// has taken several times as long before.
	strideTime = time.Millisecond
)

// stride is of a writer that goes on and on. What it cannot post is for the completions that it sees itself when it waits for room,
// a moment later. To have the completion queue armed for them, at each write, would wake the provider's goroutine, which then
// reads and posts beside the writer, and in its way.
type stride struct {
	staged  uint64 // bytes, since the stream ran dry
	on      bool   // the queue is left to rest though something is unposted; the timer runs
	timer   *time.Timer
	news    uint64 // how often there was something for pump
	hadNews uint64 // when the timer was set
}

// keep is called when a writer leaves. What it leaves unposted may wait for it to come back.
func (s *stride) keep(c *Conn) {
	if c.tx.head == nil || s.on || s.staged < strideLeast || !c.tx.open || c.tx.closing.began {
		return
	}
	s.on, s.hadNews = true, s.news
	if s.timer == nil {
		s.timer = time.AfterFunc(strideTime, c.strideOver)
	} else {
		s.timer.Reset(strideTime)
	}
}

// dry is called after pump on news. A writer that does not keep the peer busy has to prove itself anew.
func (s *stride) dry(t *transmitter) {
	if t.head == nil && !t.busy() {
		s.staged = 0
	}
}

// strideOver has the queue armed if nobody came to look at it.
func (c *Conn) strideOver() {
	t := &c.tx
	s := &t.stride
	t.mu.Lock()
	if t.head != nil && t.open && t.err == nil && s.news != s.hadNews {
		s.hadNews = s.news
		s.timer.Reset(strideTime)
	} else {
		s.on = false
		if t.head != nil {
			s.staged = 0
		}
	}
	c.unlockTx()
}

// stop ends the timer for good; tx.open is false.
func (s *stride) stop() {
	if s.on = false; s.timer != nil {
		s.timer.Stop()
	}
}
