package softroce

import (
	"net/netip"
	"sync"
	"time"
)

// Congestion is controlled per remote process: queue pairs to one host and slot
// share what that process's socket buffers, which is little, and the network
// between. The controller is TCP's (RFC 5681), with what CUBIC does (RFC 9438) to stay
// near a limit it has met: go-back-N repeats everything behind a loss, so losses
// must be rare.

const (
	// packetOverhead is what a packet costs beyond its payload, in bytes. A
	// receiver's kernel charges its socket for buffers, not for bytes.
	packetOverhead = 512

	initialWindow = 96 << 10
	maxWindow     = 8 << 20
	floorPackets  = 4

	// turnBytes is what a queue pair gets in its turn where others wait behind it, if it has so much to send, and at
	// most a quarter of the window. Turns of what happens to be free would soon be of a packet each, with an
	// acknowledgement for each: TCP's silly window (RFC 813). The kernel takes so much at once.
	turnBytes  = 64 << 10
	grantBytes = 16 << 10 // what it gets at most where nobody does

	// queueDelay is by how much a round trip may be longer than the shortest, on a short
	// path, before slow start ends. A busy host delays packets, too.
	queueDelay = int64(time.Millisecond)

	// growPause is the least time between increases near the limit. On a short path the
	// round trip is no measure: thousands fit in a second.
	growPause = int64(5 * time.Millisecond)
)

type congestionKey struct {
	remote netip.Addr
	slot   uint8
}

// congestionTable holds the controllers of connected queue pairs' peers, and no others.
type congestionTable struct {
	mu sync.Mutex
	m  map[congestionKey]*congestion
}

// join returns the peer's controller for one more queue pair.
func (t *congestionTable) join(remote netip.Addr, qpn uint32, packet int64) *congestion {
	key := congestionKey{remote, uint8(qpn >> 16)}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.m[key]
	if c == nil {
		if t.m == nil {
			t.m = make(map[congestionKey]*congestion)
		}
		c = &congestion{key: key, window: initialWindow, threshold: maxWindow}
		t.m[key] = c
	}
	c.users++
	c.mu.Lock()
	c.packet = max(c.packet, packet)
	c.mu.Unlock()
	return c
}

// leave takes a queue pair back that has returned all its bytes.
func (t *congestionTable) leave(c *congestion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(t.m, c.key)
	}
}

// congestion limits the bytes in flight to one remote process.
type congestion struct {
	key   congestionKey
	users int // under the table's lock

	mu        sync.Mutex
	packet    int64 // cost of the largest packet
	window    int64
	threshold int64 // below it slow start
	inflight  int64 // sent and not acknowledged, or granted
	acks      int64 // bytes acknowledged since the window grew
	grown     int64 // when that was
	limit     int64 // the window at the last loss
	lastLoss  int64
	minRTT    int64 // 0: none measured
	rtt       int64 // smoothed

	first, last *rc // waiting for room, linked by rc.waitNext
}

// take grants r at least least bytes of room, and at most most. Where there is not
// enough it grants none, and r waits in line for its turn. What it is granted then must do: a packet's worth at least,
// and half of the window or what it needs.
func (c *congestion) take(r *rc, least, most int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.askEvery = uint32(min(max(c.window/c.packet/4, 2), ackEvery))
	if n := r.granted; n > 0 { // a packet's worth at least
		r.granted = 0
		return n
	}
	if r.waiting {
		return 0
	}
	room := c.window - c.inflight
	if c.first != nil || room < least && c.inflight > 0 {
		r.need, r.want = least, most
		c.wait(r)
		return 0
	}
	n := max(least, min(room, most))
	c.inflight += n
	return n
}

func (c *congestion) wait(r *rc) {
	r.waiting = true
	if c.last == nil {
		c.first = r
	} else {
		c.last.waitNext = r
	}
	c.last = r
}

// give returns n bytes that were acknowledged, lost or not used.
func (c *congestion) give(w *work, n int64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.inflight -= n
	c.wake(w)
	c.mu.Unlock()
}

// acked returns n bytes that were acknowledged, and lets the window grow if it was the limit.
func (c *congestion) acked(w *work, n int64) {
	c.mu.Lock()
	if c.inflight >= c.window/2 {
		c.grow(w.now(), n)
	}
	c.inflight -= n
	c.wake(w)
	c.mu.Unlock()
}

func (c *congestion) grow(now, n int64) {
	if c.window < c.threshold {
		c.window = min(c.window+n, maxWindow)
		return
	}
	if c.acks += n; c.acks < c.window {
		return
	}
	c.acks = 0
	if c.window > c.limit-c.limit/8 && c.window < c.limit+c.limit/8 && now-c.grown < growPause {
		return
	}
	c.grown = now
	c.window = min(c.window+c.packet, maxWindow)
}

// measured ends slow start when the round trip shows that a queue builds up,
// before it overflows.
func (c *congestion) measured(rtt int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rtt += (rtt - c.rtt) / 8
	if c.minRTT == 0 || rtt < c.minRTT {
		if c.minRTT == 0 {
			c.rtt = rtt
		}
		c.minRTT = rtt
	} else if rtt > c.minRTT+max(c.minRTT/4, queueDelay) {
		c.threshold = min(c.threshold, c.window)
	}
}

func (c *congestion) roundTrip() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rtt
}

// lost reduces the window, once per round trip, and tells whether it did.
func (c *congestion) lost(now, rtt int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastLoss != 0 && now-c.lastLoss < rtt {
		return false
	}
	c.lastLoss, c.grown = now, now
	c.limit = c.window
	c.threshold = max(c.window-c.window/10*3, floorPackets*c.packet)
	c.window = c.threshold
	c.acks = 0
	return true
}

// acquit undoes the last reduction.
func (c *congestion) acquit() {
	c.mu.Lock()
	c.window = max(c.window, c.limit)
	c.mu.Unlock()
}

// wake gives those who wait their turn, first come first served, each with a
// part of the room. There will be room as long as anything is in flight.
func (c *congestion) wake(w *work) {
	for c.first != nil {
		room := c.window - c.inflight
		r := c.first
		need := max(c.packet, min(r.need, c.window/2))
		if r.waitNext != nil {
			need = max(need, min(r.want, turnBytes, c.window/4))
		}
		if room < need && c.inflight > 0 {
			return
		}
		if c.first = r.waitNext; c.first == nil {
			c.last = nil
		}
		r.waitNext, r.waiting = nil, false
		n := max(need, min(room, grantBytes))
		r.granted += n
		c.inflight += n
		w.resume = append(w.resume, r)
	}
}

// refund returns what r was granted and has no use for.
func (c *congestion) refund(w *work, r *rc) {
	c.mu.Lock()
	c.refundLocked(w, r)
	c.mu.Unlock()
}

func (c *congestion) refundLocked(w *work, r *rc) {
	if r.granted != 0 {
		c.inflight -= r.granted
		r.granted = 0
		c.wake(w)
	}
}

// quit takes r out of the line and returns what it was granted.
func (c *congestion) quit(w *work, r *rc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.waiting {
		for p, prev := c.first, (*rc)(nil); p != nil; p, prev = p.waitNext, p {
			if p != r {
				continue
			}
			if prev == nil {
				c.first = p.waitNext
			} else {
				prev.waitNext = p.waitNext
			}
			if c.last == p {
				c.last = prev
			}
			break
		}
		r.waiting, r.waitNext = false, nil
	}
	c.refundLocked(w, r)
}
