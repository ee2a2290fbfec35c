package main

import (
	"encoding/binary"
	"fmt"

	"github.com/go-rdma/rdma/rpma"
)

const slot = 65536

var messages = []struct {
	n    int
	with bool
	imm  uint32
}{{1, false, 0}, {1024, true, 0x01020304}, {1025, false, 0}, {0, false, 0}, {0, true, 0xffffffff}, {slot, true, 9}, {4097, false, 0}}

// queues says where receives complete and how they are waited for.
type queues int

const (
	mainCQ queues = iota
	ownCQ
	sharedChannel
)

// mailbox is the memory of a connection's messages: two places to receive into, and one to send from.
type mailbox struct{ in, out *rpma.MR }

func (s *side) mailbox(q queues) mailbox {
	if q != mainCQ {
		s.config.RCQSize = 10
	}
	s.config.SharedChannel = q == sharedChannel
	return mailbox{s.alloc(2*slot, rpma.RecvBuf), s.alloc(2*slot, rpma.SendBuf)}
}

func (s *side) firstReceives(b mailbox) {
	try(s.req.PostRecv(b.in.Slice(0, slot), 1))
	try(s.req.PostRecv(b.in.Slice(slot, slot), 2))
}

func (s *side) sendOne(b mailbox, i int) {
	m := messages[i]
	var src rpma.Local
	if m.n != 0 {
		off := i % 2 * slot // the one before may still be on its way
		copy(b.out.Bytes()[off:], pattern(m.n, 10+i))
		src = b.out.Slice(off, m.n)
	}
	op := rpma.Send(src)
	if m.with {
		op = rpma.SendImm(src, m.imm)
	}
	s.post(op, uint64(100+i), rpma.CompletionAlways)
}

// exchange sends each message and gets it back, or the other way round.
func (s *side) exchange(b mailbox, q queues, server bool) {
	check((s.conn.RecvCQ() != nil) == (q != mainCQ), "receive queue: %v", s.conn.RecvCQ())
	if q == sharedChannel {
		mustFail(rpma.ErrSharedChannel, s.conn.CQ().Wait(s.ctx))
	} else {
		_, _, err := s.conn.Wait(s.ctx)
		mustFail(rpma.ErrNotSharedChannel, err)
	}
	if !server {
		s.sendOne(b, 0)
	}
	for sent, received := 0, 0; sent < len(messages) || received < len(messages); {
		c := s.oneOf(q, sent < received || received == len(messages))
		try(c.Err())
		if c.ID == uint64(100+sent) {
			sent++
			continue
		}
		i, m := received, messages[received]
		check(c.ID == uint64(1+i), "completion %d", c.ID)
		check(c.Bytes == m.n && c.HasImm == m.with && c.Imm == m.imm, "message %d: %+v", i, c)
		expectPattern(b.in.Bytes()[i%2*slot:][:m.n], 10+i)
		if i+2 < len(messages) {
			try(s.conn.PostRecv(b.in.Slice(i%2*slot, slot), uint64(3+i)))
		}
		if server {
			s.sendOne(b, i)
		}
		received++
		if !server && received < len(messages) {
			s.sendOne(b, received)
		}
	}
	if !server {
		s.settle()
	}
	fmt.Println(len(messages), "messages")
}

// settle makes sure that the server knows that its last message was received: a connection that ends is no acknowledgement.
func (s *side) settle() { try(s.conn.Do(s.ctx, rpma.Write(rpma.Remote{}, rpma.Local{}))) }

// oneOf returns the next completion, of the queue that is waited for: with two of them, that of sends if one must come there.
func (s *side) oneOf(q queues, sending bool) rpma.Completion {
	switch {
	case q == mainCQ || q == ownCQ && sending:
		return s.next(s.conn.CQ())
	case q == ownCQ:
		return s.next(s.conn.RecvCQ())
	}
	var c [1]rpma.Completion
	for {
		for _, cq := range []*rpma.CQ{s.conn.CQ(), s.conn.RecvCQ()} {
			if n, err := cq.Poll(c[:]); n == 1 || err != nil {
				try(err)
				return c[0]
			}
		}
		cq, recv, err := s.conn.Wait(s.ctx)
		try(err)
		check(recv == (cq == s.conn.RecvCQ()), "Wait tells queues apart wrongly")
	}
}

func serveSend(q queues) func(*side) {
	return func(s *side) {
		b := s.mailbox(q)
		s.listen()
		s.nextRequest()
		s.firstReceives(b)
		s.connect(nil)
		s.exchange(b, q, true)
		s.end(false)
	}
}

func dialSend(q queues) func(*side) {
	return func(s *side) {
		b := s.mailbox(q)
		s.request()
		s.firstReceives(b)
		s.connect(nil)
		s.exchange(b, q, false)
		s.end(true)
	}
}

const (
	conns  = 2
	rounds = 5
)

// serveSRQ serves two connections from one receive queue, whose completions are in a queue of its own, in the connections' main
// queues, or in their receive queues.
func serveSRQ(own, rcqs bool) func(*side) {
	return func(s *side) {
		in, out := s.alloc(16*8, rpma.RecvBuf), s.alloc(conns*8, rpma.SendBuf)
		cfg := rpma.SRQConfig{RQSize: 16, RCQSize: -1}
		if own {
			cfg.RCQSize = 16
		}
		srq, err := s.peer.NewSRQ(&cfg)
		try(err)
		for i := range 16 {
			try(srq.PostRecv(in.Slice(i*8, 8), uint64(i)))
		}
		s.config.SRQ = srq
		if rcqs {
			s.config.RCQSize = 10
		}
		s.listen()
		var c [conns]*side
		var cq [conns]*rpma.CQ
		for i := range c {
			one := *s
			c[i] = &one
			c[i].nextRequest()
			c[i].connect(nil)
			switch {
			case own:
				cq[i] = srq.CQ()
			case rcqs:
				cq[i] = c[i].conn.RecvCQ()
			default:
				cq[i] = c[i].conn.CQ()
			}
		}
		var done [conns]int
		for done[0] < rounds || done[1] < rounds {
			k := 0
			if !own && done[0] > done[1] {
				k = 1 // the client sends to them in turn
			}
			w := s.next(cq[k])
			try(w.Err())
			if w.ID == 100 {
				continue // sent
			}
			i := 0
			if w.QPNum != c[0].conn.QPNum() {
				i = 1
			}
			check(w.QPNum == c[i].conn.QPNum() && w.Bytes == 8, "completion %+v", w)
			v := binary.LittleEndian.Uint64(in.Bytes()[w.ID*8:]) + 1
			binary.LittleEndian.PutUint64(out.Bytes()[i*8:], v)
			try(srq.PostRecv(in.Slice(int(w.ID)*8, 8), w.ID))
			c[i].post(rpma.Send(out.Slice(i*8, 8)), 100, rpma.CompletionAlways)
			done[i]++
			if own || rcqs {
				s.expect(c[i].conn.CQ(), 100)
			}
		}
		for _, one := range c {
			one.end(false)
		}
		try(srq.Close())
		fmt.Println(done[0], "+", done[1], "rounds")
	}
}

func dialSRQ(s *side) {
	m := s.alloc(conns*16, rpma.SendBuf|rpma.RecvBuf)
	var c [conns]*side
	for i := range c {
		one := *s
		c[i] = &one
		c[i].dial(nil)
	}
	for k := range rounds {
		for i, one := range c {
			v := uint64(1000*i + k)
			binary.LittleEndian.PutUint64(m.Bytes()[i*16:], v)
			try(one.conn.PostRecv(m.Slice(i*16+8, 8), 1))
			one.post(rpma.Send(m.Slice(i*16, 8)), 2, rpma.CompletionOnError)
			w := s.expect(one.conn.CQ(), 1)
			check(w.Bytes == 8 && binary.LittleEndian.Uint64(m.Bytes()[i*16+8:]) == v+1, "answer %+v", w)
		}
	}
	for _, one := range c {
		one.settle()
		one.end(true)
	}
	fmt.Println(rounds, "+", rounds, "rounds")
}
