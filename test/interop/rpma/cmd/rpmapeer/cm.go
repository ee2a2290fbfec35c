package main

import (
	"bytes"
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rpma"
)

// expectData looks at private data, which arrives padded with zeros.
func expectData(b []byte, text string, room int) {
	want := make([]byte, room)
	copy(want, text)
	check(bytes.Equal(b, want), "private data %q", b)
	fmt.Printf("%s (%d bytes)\n", text, room)
}

func serveConnect(s *side) {
	s.listen()
	s.nextRequest()
	expectData(s.req.PrivateData(), "from the client", 56)
	s.connect([]byte("from the server\x00"))
	check(len(s.conn.PrivateData()) == 56, "private data %q", s.conn.PrivateData())
	s.end(true)
}

func dialConnect(s *side) {
	s.dial([]byte("from the client\x00"))
	expectData(s.conn.PrivateData(), "from the server", 196)
	check(s.conn.QPNum() > 1, "queue pair %d", s.conn.QPNum())
	s.end(false)
}

func serveNoData(s *side) {
	s.listen()
	s.nextRequest()
	expectData(s.req.PrivateData(), "", 56)
	s.connect(nil)
	s.end(false)
}

func dialNoData(s *side) {
	s.dial(nil)
	expectData(s.conn.PrivateData(), "", 196)
	s.end(true)
}

func serveReject(s *side) {
	s.listen()
	s.nextRequest()
	try(s.req.Reject(nil))
	s.nextRequest()
	s.connect(nil)
	s.end(false)
}

func dialRejected(s *side) {
	_, err := s.peer.Dial(s.ctx, s.addr, nil)
	mustFail(syscall.ECONNREFUSED, err)
	fmt.Println("rejected")
}

func dialReject(s *side) {
	dialRejected(s)
	s.dial(nil)
	s.end(true)
}

func serveSilent(s *side) {
	s.listen()
	s.nextRequest()
	s.connect(nil)
	fmt.Println("silent")
	time.Sleep(time.Hour)
}

func dialSilent(s *side) {
	s.dial(nil)
	begin := time.Now()
	try(s.conn.Close())
	check(time.Since(begin) < 20*time.Second, "closed after %v", time.Since(begin))
	s.conn = nil
	fmt.Println("left")
}

func serveDeaf(s *side) {
	s.listen()
	time.Sleep(time.Hour)
}

func dialDeaf(s *side) {
	ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
	defer cancel()
	_, err := s.peer.Dial(ctx, s.addr, nil)
	mustFail(context.DeadlineExceeded, err)
	fmt.Println("gave up")
}

func serveKilled(s *side) {
	s.listen()
	s.nextRequest()
	s.connect(nil)
	s.die()
}

func dialKilled(s *side) {
	s.dial(nil)
	s.die()
}

// die waits for the end of the other.
func (s *side) die() {
	fmt.Println("ready")
	for {
		e, err := s.conn.NextEvent(s.ctx)
		try(err)
		if e == rpma.EventClosed {
			break
		}
	}
	check(s.conn.Err() != nil, "the connection is over without an error")
	fmt.Println("closed")
}
