package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
)

// A peer offers services: in this process, or in another one.
type peer struct {
	pid   int // 0: this process
	ask   func(*request) (*reply, error)
	close func()

	mu    sync.Mutex
	addrs map[request]string // of services that run
}

// request asks a peer for one thing.
type request struct {
	Service, Side string // offer this service on this side
	Usage         bool   // say what the process has of the machine
}

type reply struct {
	Addr  string
	Usage *usage
	Error string
}

// offer has a service listen, and tells where.
func (p *peer) offer(service, side string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	req := request{Service: service, Side: side}
	if addr, ok := p.addrs[req]; ok {
		return addr, nil
	}
	rep, err := p.ask(&req)
	if err != nil {
		return "", fmt.Errorf("service %s on %s: %w", service, side, err)
	}
	p.addrs[req] = rep.Addr
	return rep.Addr, nil
}

// startPeer offers services in this process.
func startPeer(ctx context.Context, device string) (*peer, error) {
	s := &server{ctx: ctx, device: device}
	return &peer{ask: s.answer, close: s.close, addrs: map[request]string{}}, nil
}

// startPeerProcess starts this program once more. It ends with its standard input, hence with this process.
func startPeerProcess(ctx context.Context, o *options) (*peer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-peer", "-device", o.device, "-profile", o.profile)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	enc, dec := json.NewEncoder(in), json.NewDecoder(out)
	return &peer{
		pid: cmd.Process.Pid,
		ask: func(req *request) (*reply, error) {
			if err := enc.Encode(req); err != nil {
				return nil, fmt.Errorf("the other process: %w", err)
			}
			var rep reply
			if err := dec.Decode(&rep); err != nil {
				return nil, fmt.Errorf("the other process ended: %w", err)
			}
			if rep.Error != "" {
				return nil, errors.New(rep.Error)
			}
			return &rep, nil
		},
		close: func() {
			in.Close()
			_ = cmd.Wait() // nothing is asked of it anymore
		},
		addrs: map[request]string{},
	}, nil
}

// servePeer is the other process.
func servePeer(ctx context.Context, device string) error {
	s := &server{ctx: ctx, device: device}
	defer s.close()
	enc, dec := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
	for {
		var req request
		if err := dec.Decode(&req); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		rep, err := s.answer(&req)
		if err != nil {
			rep = &reply{Error: err.Error()}
		}
		if err := enc.Encode(rep); err != nil {
			return err
		}
	}
}

// server is where the services of a peer run.
type server struct {
	ctx    context.Context
	device string
	ls     []net.Listener
}

func (s *server) answer(req *request) (*reply, error) {
	if req.Usage {
		u, err := ownUsage()
		return &reply{Usage: u}, err
	}
	serve, ok := services[req.Service]
	if !ok {
		return nil, fmt.Errorf("no service %q", req.Service)
	}
	picked, err := sidesNamed(s.device, []string{req.Side})
	if err != nil {
		return nil, err
	}
	l, err := picked[0].listen(s.ctx)
	if err != nil {
		return nil, err
	}
	s.ls = append(s.ls, l)
	go serve(l)
	return &reply{Addr: l.Addr().String()}, nil
}

func (s *server) close() {
	for _, l := range s.ls {
		l.Close()
	}
}
