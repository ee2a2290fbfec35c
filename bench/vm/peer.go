package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// peerOptions say what one of rdmanet's two programs does: what rstream does with -S size -C count -I iters.
type peerOptions struct {
	serve, dial        string
	device, ready      string
	size, count, iters int
	warm               int
	busy               time.Duration
	datagram           bool
	profile            string
}

const (
	// helloSize is what each test of rstream begins with, in both directions.
	helloSize = 16

	peerLimit = 2 * time.Minute
)

// peerResult is what a peer found.
type peerResult struct {
	USPerTransfer     float64
	Mallocs, CgoCalls float64 // per transfer, of this process
	Spins, Parks      float64 // likewise
	Stalls            float64 // waits for the peer to give space, likewise
	ReadBuffer        int     // registered in the end
}

// main runs the peer and prints its result.
func (p *peerOptions) main(ctx context.Context) error {
	if p.datagram {
		return p.datagrams(ctx)
	}
	c, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(peerLimit)); err != nil {
		return err
	}
	if p.profile != "" {
		f, err := os.Create(p.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	r, err := p.test(c)
	if err != nil {
		return err
	}
	if err := p.end(c); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func (p *peerOptions) connect(ctx context.Context) (net.Conn, error) {
	if p.dial != "" {
		d := rdmanet.Dialer{Device: p.device, BusyPoll: p.busy, Timeout: peerLimit}
		return d.DialContext(ctx, "rdma", p.dial)
	}
	lc := rdmanet.ListenConfig{Device: p.device, BusyPoll: p.busy}
	l, err := lc.Listen(ctx, "rdma", p.serve)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if p.ready != "" {
		if err := os.WriteFile(p.ready, nil, 0o600); err != nil {
			return nil, err
		}
	}
	return l.Accept()
}

// end shuts the connection down as rstream does, and waits for the peer to do so.
func (p *peerOptions) end(c net.Conn) error {
	rc, ok := rdmanet.Unwrap(c)
	if !ok {
		return errors.New("not a connection of rdmanet's")
	}
	if err := rc.CloseWrite(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, c)
	return err
}

func (p *peerOptions) test(c net.Conn) (*peerResult, error) {
	client := p.dial != ""
	buf := make([]byte, max(p.size, helloSize))
	if err := turns(c, buf[:helloSize], client, 1); err != nil {
		return nil, err
	}
	rc, ok := rdmanet.Unwrap(c)
	if !ok {
		return nil, errors.New("not a connection of rdmanet's")
	}
	for range p.warm {
		if err := turns(c, buf[:p.size], client, p.count); err != nil {
			return nil, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls, stats := runtime.NumCgoCall(), rc.Stats()
	start := time.Now()
	for range p.iters {
		if err := turns(c, buf[:p.size], client, p.count); err != nil {
			return nil, err
		}
	}
	took := time.Since(start)
	calls = runtime.NumCgoCall() - calls
	runtime.ReadMemStats(&after)
	n := float64(2 * p.iters * p.count)
	now := rc.Stats()
	return &peerResult{
		USPerTransfer: float64(took.Microseconds()) / n,
		Mallocs:       float64(after.Mallocs-before.Mallocs) / n,
		CgoCalls:      float64(calls) / n,
		Spins:         float64(now.Spins-stats.Spins) / n,
		Parks:         float64(now.Parks-stats.Parks) / n,
		Stalls:        float64(now.CreditStalls-stats.CreditStalls) / n,
		ReadBuffer:    now.ReadBuffer,
	}, nil
}

// turns moves count buffers from client to server and as many back.
func turns(c net.Conn, buf []byte, client bool, count int) error {
	for _, send := range []bool{client, !client} {
		for range count {
			var err error
			if send {
				_, err = c.Write(buf)
			} else {
				_, err = io.ReadFull(c, buf)
			}
			if err != nil {
				return fmt.Errorf("a transfer of %d bytes: %w", len(buf), err)
			}
		}
	}
	return nil
}
