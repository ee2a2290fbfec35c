//go:build linux

package shm

import "sync/atomic"

// cqSeat is a completion queue of an open device on a link: peers of several links arm and ring it by their own boards.
type cqSeat struct {
	dev   *device
	num   uint32
	arm   *atomic.Uint32
	users int
}

// seat counts a queue pair on a link, and returns the number of the queue there.
func (c *cq) seat(d *device) (num uint32, err error) {
	if !c.dev.open {
		return c.num, nil
	}
	defer c.lookAt()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.seats {
		if s := &c.seats[i]; s.dev == d {
			s.users++
			return s.num, nil
		}
	}
	if num, err = d.numberCQ(c); err != nil {
		return 0, err
	}
	s := cqSeat{dev: d, num: num, arm: armWord(d.board, num), users: 1}
	s.arm.Store(c.arm.Load())
	c.seats = append(c.seats, s)
	return num, nil
}

// unseat is the end of a queue pair on a link.
func (c *cq) unseat(d *device) {
	if !c.dev.open {
		return
	}
	defer c.lookAt()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.seats {
		s := &c.seats[i]
		if s.dev != d {
			continue
		}
		if s.users--; s.users == 0 {
			s.arm.Store(0)
			d.removeCQ(s.num)
			last := len(c.seats) - 1
			c.seats[i] = c.seats[last]
			c.seats[last] = cqSeat{}
			c.seats = c.seats[:last]
		}
		return
	}
}

// look is a board with marks.
type look struct {
	dev *device
	num uint32
}

// lookAt tells those who look for completions where. Nobody looks where the queue has no seat any more once it returns.
func (c *cq) lookAt() {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks = c.looks[:0]
	for i := range c.seats {
		c.looks = append(c.looks, look{c.seats[i].dev, c.seats[i].num})
	}
}

// armSeats lets the peers know that the queue is armed. c.mu is held.
func (c *cq) armSeats() {
	for i := range c.seats {
		c.seats[i].arm.Store(1)
	}
}

// rung tells whether a peer's bell is the one that Arm has asked for: of several peers each may ring.
func (c *cq) rung() bool { return !c.dev.open || c.arm.CompareAndSwap(1, 0) }
