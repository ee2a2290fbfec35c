package rc

import "time"

// Arming a queue costs a call, and the completion that follows an event, a goroutine and a thread that are woken for
// nothing: whoever waits by spinning has seen the completion long before. So one who spun and met its condition
// leaves the queue unarmed. Until it comes again nobody sees what completes, which nobody misses if nobody is parked
// and nothing is pending. That lasts for two restTimes at most.

// restTime is how often a queue at rest is looked at.
const restTime = 4 * time.Millisecond

// mayRest tells whether the queue may be left unarmed, and has somebody look at it later. What changes
// afterwards is followed by Attend.
func (c *Conn) mayRest() bool {
	if c.parked.Load() > 0 || c.h.Pending() {
		return false
	}
	if !c.resting.Swap(true) {
		c.rested = c.spins.Load()
		if c.rest == nil {
			c.rest = time.AfterFunc(c.restFor, c.restOver)
		} else {
			c.rest.Reset(c.restFor)
		}
	}
	return true
}

// lately tells whether somebody who waits by spinning was here a short while ago.
func (c *Conn) lately() bool {
	last := c.lastMet.Load()
	return last != 0 && now()-last < int64(c.restFor)
}

// restOver looks at a queue that nobody has come back to.
func (c *Conn) restOver() {
	if n := c.spins.Load(); n != c.rested && !c.armed.Load() {
		c.rested = n
		c.rest.Reset(c.restFor)
		return
	}
	c.resting.Store(false)
	c.Attend()
}

// Attend has the queue armed if it rests. Whoever makes something pending, or parks, calls it afterwards.
func (c *Conn) Attend() {
	if !c.armed.Load() {
		c.Progress()
	}
}
