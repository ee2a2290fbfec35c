package rping

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	// MaxClients bounds how many are served at a time.
	MaxClients = 256

	// Idle is how long a client may be silent.
	Idle = 10 * time.Minute

	// answerLimit bounds the time that a client takes for one ping.
	answerLimit = time.Minute

	// standLimit bounds the time in which a connection comes to stand.
	standLimit = 30 * time.Second
)

// Server answers the pings of many clients.
type Server struct {
	// Opened and Ended are told of clients, perhaps from several goroutines. The error is nil if the client went in order.
	Opened func(client netip.AddrPort, device string)
	Ended  func(client netip.AddrPort, pings int, err error)

	l    *cm.Listener
	wg   sync.WaitGroup
	room chan struct{}
}

// Listen announces a server.
func Listen(ctx context.Context, devices string, local netip.AddrPort, dual bool) (*Server, error) {
	l, err := cm.Default().Listen(ctx, devices, verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: local, DualStack: dual})
	if err != nil {
		return nil, err
	}
	return &Server{l: l, room: make(chan struct{}, MaxClients)}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr() }

// Devices tells what it listens on, and why not on others.
func (s *Server) Devices() (on, not []string) {
	for _, p := range s.l.Parts {
		name := p.Provider
		if p.Device != "" {
			name += " device " + p.Device
		}
		on = append(on, name)
	}
	for _, c := range s.l.Skipped {
		not = append(not, c.String())
	}
	return on, not
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, p := range s.l.Parts {
		s.wg.Go(func() {
			if err := s.accept(ctx, p.Listener); err != nil {
				cancel(fmt.Errorf("%s: %w", p.Provider, err))
			}
		})
	}
	<-ctx.Done()
	_ = s.l.Close()
	s.wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (s *Server) accept(ctx context.Context, l verbs.Listener) error {
	for {
		id, err := l.GetRequest(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case s.room <- struct{}{}:
			s.wg.Go(func() {
				defer func() { <-s.room }()
				s.serve(ctx, id)
			})
		default:
			_, _ = id.Reject(nil), id.Close() // the client may be gone already
		}
	}
}

// serve serves one client.
func (s *Server) serve(ctx context.Context, id verbs.CMID) {
	client := id.RemoteAddr()
	pings, err := 0, error(nil)
	defer func() {
		if s.Ended != nil {
			s.Ended(client, pings, err)
		}
	}()
	req := id.Request()
	var l *link
	if l, err = newLink(id, MaxSize, verbs.LocalWrite); err != nil {
		return
	}
	defer l.close()
	p := connParam
	p.ResponderResources, p.InitiatorDepth = min(p.ResponderResources, req.ResponderResources), min(p.InitiatorDepth, req.InitiatorDepth)
	if p.InitiatorDepth == 0 {
		_ = id.Reject(nil)
		err = errors.New("the client lets nobody READ from it: it is no rping")
		return
	}
	l.conn.Start()
	if err = l.conn.Accept(&p); err != nil {
		return
	}
	standing, cancel := context.WithTimeout(ctx, standLimit)
	err = l.stands(standing)
	cancel()
	if err != nil {
		return
	}
	if s.Opened != nil {
		s.Opened(client, l.device())
	}
	for err == nil {
		l.side.SetDeadline(time.Now().Add(Idle))
		if err = l.answer(ctx); err == nil {
			pings++
		}
	}
	switch {
	case errors.Is(err, errDisconnected), ctx.Err() != nil:
		err = nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the client was silent for %v, or took more than %v for a ping", Idle, answerLimit)
	}
}

// answer answers one ping: it READs the first buffer that the client names, and WRITEs that into the second.
func (l *link) answer(ctx context.Context) error {
	sink := l.regions[0]
	var read uint32
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
		var msg [messageSize]byte
		n, err := l.receive(ctx, &msg)
		if err != nil {
			return err
		}
		b, err := parseBuffer(msg[:min(n, messageSize)])
		if err != nil {
			return fmt.Errorf("the client speaks another protocol: %w", err)
		}
		if op == verbs.OpRead {
			read = b.size
			l.side.SetDeadline(time.Now().Add(answerLimit))
		}
		// No more is written back than was read.
		size := min(b.size, read)
		if err := l.do(ctx, verbs.SendWR{
			Op: op, RemoteAddr: b.addr, RKey: b.key,
			SGL: []verbs.SGE{{Addr: sink.Addr(), Length: size, LKey: sink.LKey()}},
		}); err != nil {
			return err
		}
		err = l.send(ctx, buffer{})
		if op == verbs.OpWrite && errors.Is(err, errDisconnected) {
			return nil // the client has what it wanted, and was faster than the acknowledgement
		}
		if err != nil {
			return err
		}
	}
	return nil
}
