package rdmanet

import (
	"container/list"
	"time"
)

const (
	// answerTime is how long a peer has to answer before a set-up may be given up in
	// favour of another one.
	answerTime = 500 * time.Millisecond
	// hurriedTime is the same while requests are dropped: whoever is near has answered by then, even if the
	// first answer was lost and this end has asked once more, after 200 ms.
	hurriedTime = 300 * time.Millisecond
	// hurryFor is how long requests count as being dropped.
	hurryFor = time.Second
)

// hurry tells whether requests of a provider have been dropped lately.
type hurry struct {
	dropped uint64
	until   time.Time
}

// on takes the number of requests that were dropped so far.
func (h *hurry) on(dropped uint64) bool {
	now := time.Now()
	if dropped != h.dropped {
		h.dropped, h.until = dropped, now.Add(hurryFor)
	}
	return now.Before(h.until)
}

// setUp is a connection that is being set up.
type setUp struct {
	begun   time.Time
	cancel  func() // nil until it can be
	crowded bool   // given up to make room
}

// setUps is the connections of a listener that are being set up, by age.
type setUps struct {
	byAge list.List // of *setUp
	of    map[*Conn]*list.Element
}

func (s *setUps) init() { s.of = make(map[*Conn]*list.Element) }

func (s *setUps) add(c *Conn) { s.of[c] = s.byAge.PushBack(&setUp{begun: time.Now()}) }

// cancelable says how to give c up, and returns false if it is done.
func (s *setUps) cancelable(c *Conn, cancel func()) bool {
	e := s.of[c]
	if e == nil {
		return false
	}
	e.Value.(*setUp).cancel = cancel
	return true
}

// remove forgets c, and tells whether it was given up to make room.
func (s *setUps) remove(c *Conn) (crowded bool) {
	e := s.of[c]
	if e == nil {
		return false
	}
	delete(s.of, c)
	return s.byAge.Remove(e).(*setUp).crowded
}

// oldest returns the oldest one that can be given up, and in how long it is as old as given.
func (s *setUps) oldest(age time.Duration) (u *setUp, wait time.Duration) {
	for e := s.byAge.Front(); e != nil; e = e.Next() {
		if u := e.Value.(*setUp); u.cancel != nil && !u.crowded {
			return u, age - time.Since(u.begun)
		}
	}
	return nil, 0
}

// cancels returns how to give up each.
func (s *setUps) cancels() (fs []func()) {
	for e := s.byAge.Front(); e != nil; e = e.Next() {
		if u := e.Value.(*setUp); u.cancel != nil {
			fs = append(fs, u.cancel)
		}
	}
	return fs
}
