// many serves many connections from one goroutine: their messages take receives from one shared receive queue, whose completions say
// whose they are.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rpma"
)

var (
	clients  = flag.Int("c", 100, "connections")
	messages = flag.Int("n", 20, "messages of each")
)

func main() {
	roles.Usage()
	roles.Main(newExample(*clients, *messages))
}

func newExample(clients, messages int) roles.Example {
	return roles.Example{
		Serve: func(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
			return serve(ctx, out, addr, ready, clients)
		},
		Dial: func(ctx context.Context, out io.Writer, addr string) error {
			return dial(ctx, out, addr, clients, messages)
		},
	}
}

const (
	slot     = 64
	receives = 256
)

// server is what the connections have in common.
type server struct {
	srq  *rpma.SRQ
	mr   *rpma.MR
	mu   sync.Mutex
	sums map[uint32]*sum // by number of the queue pair
}

// sum is what one connection has sent.
type sum struct {
	conn  *rpma.Conn
	n     int
	total uint64
}

func serve(ctx context.Context, out io.Writer, addr string, ready func(string), clients int) (err error) {
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	s := &server{sums: make(map[uint32]*sum)}
	if s.mr, err = peer.Alloc(receives*slot, rpma.RecvBuf); err != nil {
		return err
	}
	defer s.mr.Close()
	if s.srq, err = peer.NewSRQ(&rpma.SRQConfig{RQSize: receives, RCQSize: receives}); err != nil {
		return err
	}
	defer s.srq.Close()
	for i := range receives {
		if err := s.srq.PostRecv(s.mr.Slice(i*slot, slot), uint64(i)); err != nil {
			return err
		}
	}
	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	defer ep.Close()

	// All messages of all connections, until the last of these has ended.
	ctx, cancel := context.WithCancel(ctx)
	received := make(chan error, 1)
	go func() { received <- s.receive(ctx) }()
	defer func() {
		for _, c := range s.sums {
			_ = c.conn.Close()
		}
	}()
	ready(ep.Addr().String())
	for range clients {
		req, err := ep.Accept(ctx, &rpma.ConnConfig{SRQ: s.srq})
		if err == nil {
			err = s.add(ctx, req)
		}
		if err != nil {
			cancel()
			return errors.Join(err, <-received)
		}
	}
	for _, c := range s.sums {
		if err = roles.Ended(ctx, c.conn); err != nil {
			break
		}
	}
	cancel()
	if err = errors.Join(err, <-received); err != nil {
		return err
	}
	n, total := 0, uint64(0)
	for _, c := range s.sums {
		n += c.n
		total += c.total
	}
	fmt.Fprintf(out, "%d connections, %d messages, the sum of all is %d\n", len(s.sums), n, total)
	return nil
}

// add accepts a connection. Its messages may come before it is in the table, so the table waits for it.
func (s *server) add(ctx context.Context, req *rpma.ConnReq) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn, err := req.Connect(ctx, nil)
	if err != nil {
		return err
	}
	s.sums[conn.QPNum()] = &sum{conn: conn}
	return nil
}

// receive takes messages until ctx ends, and then those that have come before.
func (s *server) receive(ctx context.Context) error {
	wc := make([]rpma.Completion, 32)
	for last := false; ; {
		n, err := s.srq.CQ().Poll(wc)
		if err != nil {
			return err
		}
		for i := range wc[:n] {
			if err := s.take(&wc[i]); err != nil {
				return err
			}
		}
		if n > 0 {
			continue
		}
		if last {
			return nil
		}
		if err := s.srq.CQ().Wait(ctx); err != nil {
			if ctx.Err() == nil {
				return err
			}
			last = true
		}
	}
}

func (s *server) take(c *rpma.Completion) error {
	if err := c.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.sums[c.QPNum]
	if of == nil || c.Bytes != 8 {
		return fmt.Errorf("%d bytes for queue pair %d, which is nobody's", c.Bytes, c.QPNum)
	}
	of.n++
	of.total += binary.LittleEndian.Uint64(s.mr.Bytes()[c.ID*slot:])
	return s.srq.PostRecv(s.mr.Slice(int(c.ID)*slot, slot), c.ID)
}

func dial(ctx context.Context, out io.Writer, addr string, clients, messages int) (err error) {
	peer, err := roles.RemotePeer(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error)
	for i := range clients {
		go func() { errs <- client(ctx, peer, addr, uint64(i), messages) }()
	}
	for range clients {
		if e := <-errs; e != nil && err == nil {
			err = e
			cancel() // what the others say is about that
		}
	}
	if err == nil {
		fmt.Fprintf(out, "sent %d messages on each of %d connections\n", messages, clients)
	}
	return err
}

// client sends its number some times.
func client(ctx context.Context, peer *rpma.Peer, addr string, number uint64, messages int) error {
	conn, err := peer.Dial(ctx, addr, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	mr, err := peer.Alloc(8, rpma.SendBuf)
	if err != nil {
		return err
	}
	defer mr.Close()
	binary.LittleEndian.PutUint64(mr.Bytes(), number)
	for range messages {
		if err := conn.Do(ctx, rpma.Send(mr.Slice(0, 8))); err != nil {
			return err
		}
	}
	return nil
}
