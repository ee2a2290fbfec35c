package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// A side is one of those that are compared: a transport, and how its ends wait.
type side struct {
	name   string
	listen func(ctx context.Context) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
}

const loopback = "127.0.0.1:0"

// Names of the sides, the first first.
const (
	sideTCP    = "TCP"
	sideRDMA   = "RDMA"
	sideSpin   = "RDMA, spinning"
	sideParked = "RDMA, parked"
	sideQUIC   = "QUIC"
	sideQuiet  = "RDMA, no keep-alive"

	sideUnix      = "Unix socket"
	sideShm       = "shared memory"
	sideShmSpin   = "shared memory, spinning"
	sideShmParked = "shared memory, parked"
	sideShmQuiet  = "shared memory, no keep-alive"
	sideUCX       = "UCX"
)

// spinTime is RDMA's BusyPoll where it spins: the longest it spins by itself where that pays.
const spinTime = time.Millisecond

// sides are all there are.
func sides(device string) []side {
	return []side{
		{
			name: sideTCP,
			listen: func(ctx context.Context) (net.Listener, error) {
				return new(net.ListenConfig).Listen(ctx, "tcp", loopback)
			},
			dial: func(ctx context.Context, addr string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			},
		},
		rdmaSide(sideRDMA, rdmanet.Dialer{Device: device}),
		rdmaSide(sideSpin, rdmanet.Dialer{Device: device, BusyPoll: spinTime}),
		rdmaSide(sideParked, rdmanet.Dialer{Device: device, BusyPoll: -1}),
		rdmaSide(sideQuiet, rdmanet.Dialer{Device: device, KeepAlive: -1}),
		{name: sideUnix, listen: listenUnix, dial: dialUnix},
		rdmaSide(sideShm, rdmanet.Dialer{Device: "shm"}),
		rdmaSide(sideShmSpin, rdmanet.Dialer{Device: "shm", BusyPoll: spinTime}),
		rdmaSide(sideShmParked, rdmanet.Dialer{Device: "shm", BusyPoll: -1}),
		rdmaSide(sideShmQuiet, rdmanet.Dialer{Device: "shm", KeepAlive: -1}),
		{name: sideQUIC, listen: listenQUIC, dial: dialQUIC},
		{name: sideUCX}, // it has a program of its own
	}
}

// rdmaSide has both ends as d says.
func rdmaSide(name string, d rdmanet.Dialer) side {
	lc := rdmanet.ListenConfig{Device: d.Device, BusyPoll: d.BusyPoll, KeepAlive: d.KeepAlive}
	return side{
		name:   name,
		listen: func(ctx context.Context) (net.Listener, error) { return lc.Listen(ctx, "rdma", loopback) },
		dial:   func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "rdma", addr) },
	}
}

// listenUnix listens under a name that the kernel chooses (unix(7), autobind).
func listenUnix(ctx context.Context) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "unix", "")
}

func dialUnix(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", addr)
}

// sidesNamed picks sides, in the order of names.
func sidesNamed(device string, names []string) ([]side, error) {
	all := sides(device)
	var picked []side
	for _, name := range names {
		n := len(picked)
		for _, s := range all {
			if s.name == name {
				picked = append(picked, s)
			}
		}
		if len(picked) == n {
			return nil, fmt.Errorf("no side is named %q", name)
		}
	}
	return picked, nil
}
