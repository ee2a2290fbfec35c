package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"github.com/go-rdma/rdma/rdmanet"
)

// A transport is one of the two that are compared.
type transport struct {
	name   string
	listen func(ctx context.Context) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
}

const loopback = "127.0.0.1:0"

// transports are TCP and RDMA, in this order.
func transports(device string) [2]transport {
	lc := rdmanet.ListenConfig{Device: device}
	d := rdmanet.Dialer{Device: device}
	return [2]transport{{
		name: "TCP",
		listen: func(ctx context.Context) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", loopback)
		},
		dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	}, {
		name:   "RDMA",
		listen: func(ctx context.Context) (net.Listener, error) { return lc.Listen(ctx, "rdma", loopback) },
		dial:   func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "rdma", addr) },
	}}
}

// A peer offers every case's service on both transports.
type peer struct {
	Addrs [2][]string // by transport and case
	close func()
}

func startPeer(ctx context.Context, device string) (*peer, error) {
	p := &peer{}
	var ls []net.Listener
	p.close = func() {
		for _, l := range ls {
			l.Close()
		}
	}
	for t, tr := range transports(device) {
		for _, c := range cases {
			l, err := tr.listen(ctx)
			if err != nil {
				p.close()
				return nil, err
			}
			ls = append(ls, l)
			p.Addrs[t] = append(p.Addrs[t], l.Addr().String())
			go c.serve(l)
		}
	}
	return p, nil
}

// servePeer is the other process: it says where its services are and ends with
// its standard input, hence with the process that started it.
func servePeer(ctx context.Context, device string) error {
	p, err := startPeer(ctx, device)
	if err != nil {
		return err
	}
	defer p.close()
	if err := json.NewEncoder(os.Stdout).Encode(p); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startPeerProcess starts this program once more.
func startPeerProcess(ctx context.Context, device string) (*peer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-peer", "-device", device)
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
	p := &peer{close: func() {
		in.Close()
		_ = cmd.Wait() // nothing is asked of it anymore
	}}
	if err := json.NewDecoder(out).Decode(p); err != nil {
		p.close()
		return nil, fmt.Errorf("the other process did not start: %w", err)
	}
	return p, nil
}
