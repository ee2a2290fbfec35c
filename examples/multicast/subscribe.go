package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

const (
	// firstRetry is how long an answer to a request may take; each time that nothing comes of it twice as long.
	firstRetry = 10 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
	// silence is how long nothing may come of a feed that has begun.
	silence = 5 * time.Second
	// window is how far ahead of a gap quotes are kept.
	window = 1 << 16
	// stride is how far the feed may be ahead of what is known: more would be a forged number.
	stride = 1 << 20
)

// subscriber puts the feed together.
type subscriber struct {
	c      *rdmanet.PacketConn
	source net.Addr // the publisher, once it was heard

	next    uint64 // number of the quote that is due; 0: nothing was heard yet
	highest uint64 // that is known of
	ended   bool   // highest is the last
	ahead   map[uint64]quote

	retry   time.Duration
	retryAt time.Time // zero: nothing is missing
	ask     *outgoing

	sum                                         hash.Hash
	quotes, gaps, repaired, lost, thrown, twice int
}

// subscribe receives the feed to its end.
func subscribe(ctx context.Context, o *options) error {
	c, err := open(ctx, o, 0)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	s := &subscriber{c: c, ahead: make(map[uint64]quote), sum: sha256.New()}
	fmt.Printf("subscribed to %v\n", o.group)
	if err := s.receive(o.lose); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	st := c.Stats()
	fmt.Printf("%d quotes in order; %d gaps, %d quotes sent again, %d lost for good; %d datagrams thrown away on purpose, %d dropped for want of room; sha-256 %x\n",
		s.quotes, s.gaps, s.repaired, s.lost, s.thrown, st.Dropped, s.sum.Sum(nil))
	return nil
}

// receive reads until the feed has ended and nothing is missing.
func (s *subscriber) receive(lose float64) error {
	ms := make([]rdmanet.Message, 32)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, maxLength)}
	}
	quiet := time.Time{}
	for !s.ended || s.next <= s.highest || s.next == 0 {
		deadline := s.retryAt
		if deadline.IsZero() {
			deadline = quiet
		}
		if err := s.c.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := s.c.ReadBatch(ms, 0)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if time.Now().After(quiet) {
				return fmt.Errorf("the feed has been silent for %v, after quote %d", silence, s.highest)
			}
		case err != nil:
			return err
		}
		for i := range ms[:n] {
			m := &ms[i]
			if lose > 0 && rand.Float64() < lose {
				s.thrown++ // as if the network had lost it, answers included
				continue
			}
			d, err := parse(m.Buffers[0][:m.N])
			if err != nil {
				continue
			}
			if s.source == nil {
				s.source, s.ask = m.Addr, newBatch(m.Addr)
				fmt.Printf("the publisher is %v\n", m.Addr)
			}
			if *m.Addr.(*rdmanet.Addr) == *s.source.(*rdmanet.Addr) { // others may know the format too
				quiet = time.Now().Add(silence)
				s.take(&d)
			}
		}
		if err := s.request(); err != nil {
			return err
		}
	}
	return nil
}

// begin starts with the first quote or, if the publisher cannot have that any more, with the present one.
func (s *subscriber) begin(d *datagram) {
	s.next = 1
	if d.kind == quoteKind && d.number > history {
		s.next = d.number
	}
	s.highest = s.next - 1
}

// take takes a datagram of the publisher's.
func (s *subscriber) take(d *datagram) {
	if s.next == 0 {
		s.begin(d)
	}
	if d.number > s.highest && d.number-s.highest > stride {
		return
	}
	switch d.kind {
	case quoteKind:
		if d.number < s.next || d.number-s.next >= window {
			s.twice++ // or it will be asked for when it is its turn
			return
		}
		if _, ok := s.ahead[d.number]; ok {
			s.twice++
			return
		}
		if d.number <= s.highest {
			s.repaired++
			s.retry, s.retryAt = firstRetry, time.Now().Add(firstRetry)
		}
		s.ahead[d.number] = d.quote
		s.know(d.number, d.number-1)
	case idleKind, endKind:
		s.ended = s.ended || d.kind == endKind
		s.know(d.number, d.number)
	case oldestKind:
		for s.next < d.number && s.next <= s.highest {
			if _, ok := s.ahead[s.next]; !ok {
				s.lost++
				s.next++
			}
			s.deliver()
		}
	}
	s.deliver()
}

// know notes that there are quotes up to a number, and whether those up to another one, which were not known of, are missing.
func (s *subscriber) know(last, missing uint64) {
	if last <= s.highest {
		return
	}
	if missing > s.highest {
		s.gaps++
		s.retry, s.retryAt = firstRetry, time.Now() // at once
	}
	s.highest = last
}

// deliver gives the application what is due.
func (s *subscriber) deliver() {
	for {
		q, ok := s.ahead[s.next]
		if !ok {
			break
		}
		delete(s.ahead, s.next)
		d := datagram{kind: quoteKind, number: s.next, quote: q}
		s.sum.Write(d.append(nil)[headLength:])
		s.quotes++
		s.next++
	}
	if s.next > s.highest {
		s.retryAt = time.Time{}
	}
}

// request asks for what is missing, if it is time to.
func (s *subscriber) request() error {
	if s.retryAt.IsZero() || time.Now().Before(s.retryAt) {
		return nil
	}
	s.ask.reset()
	for n := s.next; n <= s.highest && n-s.next < window && s.ask.n < batch; n++ {
		if _, ok := s.ahead[n]; ok {
			continue
		}
		d := datagram{kind: askKind, number: n, count: 1}
		for n+1 <= s.highest && d.count < mostAsked {
			if _, ok := s.ahead[n+1]; ok {
				break
			}
			n++
			d.count++
		}
		s.ask.add(&d)
	}
	s.retryAt = time.Now().Add(s.retry)
	s.retry = min(2*s.retry, lastRetry)
	return s.ask.send(s.c)
}
