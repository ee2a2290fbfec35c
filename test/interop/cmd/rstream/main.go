// rstream speaks what the rstream of librdmacm's examples speaks, at either end, over package
// rdmanet. It checks every byte that the protocol determines.
//
//	rstream [-b addr] [-p port] ...     serves one run
//	rstream -s addr [-p port] ...       connects and runs
//
// -S, -C and -I mean what they mean to the C program and must be the same at both ends, as
// must -v, which is its -T v. Without any of them both run the default series: two connections,
// one for latency, one for bandwidth. Without -v it relies on the C program's habit of sending what
// it received last; between two of this one, use -v, and -end half at one of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

type options struct {
	server   string // empty: serve
	bind     string
	port     string
	size     int
	count    int
	iters    int
	custom   bool
	verify   bool
	idle     bool
	style    string
	end      string
	seed     uint64
	buffer   int
	limit    time.Duration
	patience time.Duration
	idleAsk  time.Duration // keep-alive
}

func main() { peer.Main("rstream", run) }

func run(args []string) error {
	var o options
	fs := flag.NewFlagSet("rstream", flag.ContinueOnError)
	fs.StringVar(&o.server, "s", "", "connect to this `address`; empty: serve")
	fs.StringVar(&o.bind, "b", "", "local `address`")
	fs.StringVar(&o.port, "p", "7471", "`port`")
	fs.IntVar(&o.size, "S", 1000, "bytes of a transfer")
	fs.IntVar(&o.count, "C", 1000, "transfers one way before the direction turns")
	fs.IntVar(&o.iters, "I", 1, "turns there and back")
	fs.BoolVar(&o.verify, "v", false, "both ends verify (the C program's -T v)")
	fs.BoolVar(&o.idle, "idle", false, "wait for the end while the peer waits: as a client behind the hello, as a server before its half of it")
	fs.StringVar(&o.style, "style", "whole", "how transfers are read and written: whole, pieces or vector")
	fs.StringVar(&o.end, "end", "wait", "how it ends: wait for the peer's end, half (close for writing, then wait) or close at once")
	fs.Uint64Var(&o.seed, "seed", 1, "seed of the pieces and of the bytes")
	fs.IntVar(&o.buffer, "B", 0, "limit of the rings in bytes")
	fs.DurationVar(&o.limit, "limit", 5*time.Minute, "time for all of it")
	fs.DurationVar(&o.patience, "patience", 10*time.Second, "how long to try while the server does not listen")
	fs.DurationVar(&o.idleAsk, "k", 0, "keep-alive: idle time and interval; 0: as by default")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() != 0 {
		return fmt.Errorf("%q: no arguments are known, only flags", fs.Args())
	}
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "S", "C", "I":
			o.custom = true
		}
	})
	if o.size < 1 || o.count < 0 || o.iters < 0 {
		return errors.New("-S, -C and -I count things")
	}
	ends, err := newEnds(&o)
	if err != nil {
		return err
	}
	defer ends.close()

	s := newSession(&o)
	if o.custom || o.idle {
		return s.connection(ends, []test{{name: "custom", size: o.size, count: o.count, iters: o.iters}})
	}
	if err := s.connection(ends, latencySeries()); err != nil {
		return err
	}
	return s.connection(ends, bandwidthSeries())
}

// ends gives connections: accepted ones or dialed ones.
type ends struct {
	o        *options
	listener net.Listener
}

func newEnds(o *options) (*ends, error) {
	e := &ends{o: o}
	if o.server != "" {
		return e, nil
	}
	lc := &rdmanet.ListenConfig{ReadBuffer: o.buffer, WriteBuffer: o.buffer, KeepAliveConfig: o.keepAlive()}
	l, err := peer.Listen(lc, net.JoinHostPort(o.bind, o.port))
	if err != nil {
		return nil, err
	}
	e.listener = l
	return e, nil
}

func (e *ends) next() (*rdmanet.Conn, error) {
	if e.listener != nil {
		if err := e.listener.(*rdmanet.Listener).SetDeadline(time.Now().Add(e.o.limit)); err != nil {
			return nil, err
		}
		c, err := e.listener.Accept()
		if err != nil {
			return nil, err
		}
		return c.(*rdmanet.Conn), nil
	}
	d := &rdmanet.Dialer{
		Timeout: e.o.limit, ReadBuffer: e.o.buffer, WriteBuffer: e.o.buffer, KeepAliveConfig: e.o.keepAlive(),
	}
	if e.o.bind != "" {
		local, err := rdmanet.ResolveAddr("rdma", net.JoinHostPort(e.o.bind, "0"))
		if err != nil {
			return nil, err
		}
		d.LocalAddr = local
	}
	return peer.Dial(context.Background(), d, net.JoinHostPort(e.o.server, e.o.port), e.o.patience)
}

func (e *ends) close() {
	if e.listener != nil {
		_ = e.listener.Close() // what matters was the connections
	}
}

func (o *options) keepAlive() net.KeepAliveConfig {
	if o.idleAsk == 0 {
		return net.KeepAliveConfig{}
	}
	return net.KeepAliveConfig{Enable: true, Idle: o.idleAsk, Interval: o.idleAsk, Count: 9}
}
