//go:build linux

package shm

import (
	"fmt"
	"syscall"
)

// handle takes a message of the peer's, and its descriptor, which the caller closes. An error breaks the link.
// Consumers are not called here.
func (l *link) handle(data []byte, fd int) error {
	h, body, err := getHeader(data)
	if err != nil {
		return err
	}
	board := l.board.Load() != nil
	switch {
	case !board != (h.Kind == msgSegment && h.ID == 0):
		return fmt.Errorf("board missing, or there twice: %w", syscall.EPROTO)
	case h.Kind == msgSegment:
		return l.gotSegment(h.ID, body, fd)
	case h.Kind == msgConnect:
		return l.gotConnect(h, body)
	case h.Kind == msgAccept:
		return l.gotAccept(h, body)
	case h.Kind == msgReject:
		if c := l.connection(h.ID); c != nil {
			c.gotReject(int(h.Extra), body)
		}
		return nil
	case h.Kind == msgPorch && len(body) == 0:
		return l.gotPorch(fd)
	case h.Kind == msgAsk:
		return l.gotQuestion(h, body)
	case h.Kind == msgAnswer:
		return l.gotAnswer(h, body)
	case len(body) != 0:
		return errMessage
	}
	switch h.Kind {
	case msgNoSegment:
		return l.lostSegment(h.ID)
	case msgUnmapped:
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.ID == 0 || int64(h.ID) >= int64(len(l.used)) {
			return errMessage
		}
		l.used[h.ID] = false
	case msgBell:
		if c := l.dev.cq(h.ID); c != nil && c.rung() {
			c.arm.CompareAndSwap(knocked, unarmed) // it could not knock
			l.rx.due = append(l.rx.due, c)
		}
	case msgReceives:
		if q := l.dev.qp(h.ID); q != nil {
			q.resume()
		}
	case msgShared, msgNone:
		l.gotShared(h)
	case msgWant:
		l.gotWant(h)
	case msgBye:
		if c := l.connection(h.ID); c != nil && h.Flag == 0 {
			c.gotBye()
		} else if h.Flag != 0 {
			l.forgetShared(h.ID)
		}
		l.tell(header{Kind: msgForgot, Flag: h.Flag, ID: h.ID})
	case msgPing:
		if h.Flag == 0 {
			l.tell(header{Kind: msgPing, Flag: 1, ID: h.ID})
		}
	case msgForgot:
		l.forgotten(dyingRing{h.Flag != 0, h.ID})
	default:
		if c := l.connection(h.ID); c != nil {
			c.got(h)
		} else if h.Kind == msgDisconnect {
			l.tell(header{Kind: msgDisconnected, ID: h.ID})
		}
	}
	return nil
}

// gotSegment maps a segment.
func (l *link) gotSegment(num uint32, body []byte, fd int) error {
	var size uint64
	if err := getBody(body, &size); err != nil {
		return err
	}
	if num >= maxSegments || fd < 0 || l.segments[num].Load() != nil || num == 0 && size != boardSize {
		return fmt.Errorf("segment %d of %d bytes: %w", num, size, syscall.EPROTO)
	}
	m, err := mapSegment(fd, size, roomFor(l.cred))
	if err != nil {
		return err
	}
	l.segments[num].Store(m)
	if num == 0 {
		l.board.Store(m)
	}
	l.dev.everyQP((*qp).resumeMissing)
	return nil
}

// lostSegment unmaps one.
func (l *link) lostSegment(num uint32) error {
	if num == 0 || num >= maxSegments {
		return errMessage
	}
	m := l.segments[num].Swap(nil)
	if m == nil {
		return errMessage
	}
	m.giveUp()
	l.tell(header{Kind: msgUnmapped, ID: num})
	return nil
}

// segment returns a segment of the peer's, held for the caller; nil if there is none.
func (l *link) segment(num uint32) *mapping {
	if num >= maxSegments {
		return nil
	}
	m := l.segments[num].Load()
	if m == nil || !m.hold() {
		return nil
	}
	return m
}
