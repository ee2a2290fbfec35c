package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/relay"
)

type proxyOptions struct {
	device   string
	timeout  time.Duration
	grace    time.Duration
	maxConns int
	verbose  bool
}

func proxyCommand() *cobra.Command {
	o := &proxyOptions{}
	c := &cobra.Command{
		Use:   "proxy LISTEN CONNECT",
		Short: "Carry the connections of any program over RDMA",
		Long: `proxy listens on one endpoint and connects to another for each connection that it takes: what comes on one goes out on
the other, both ways. The end of one way is passed on and leaves the other open; a reset is passed on as a reset.

An endpoint is rdma://host:port, tcp://host:port (each with 4 or 6 behind its name for one address family) or unix:///path.
RDMA has port numbers of its own, so rdma://:6379 and tcp://:6379 do not collide. A Unix socket named @name is an abstract one.

Ctrl-C stops accepting and lets connections end for the time of --grace; another one ends at once. RDMA is clear text: what leaves
the host should be TLS of the programs at the ends.`,
		Example: `  # redis over RDMA, without a change to either program: on the server's host ...
  rdmanet proxy rdma://:6379 tcp://127.0.0.1:6379
  # ... and on the client's
  rdmanet proxy tcp://127.0.0.1:6379 rdma://server:6379
  redis-cli ping

  # from a Unix socket
  rdmanet proxy unix:///run/docker-rdma.sock rdma://server:2375`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args[0], args[1]) },
	}
	f := c.Flags()
	deviceFlag(c, &o.device)
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give a connection up that takes longer to make; 0: never")
	f.DurationVar(&o.grace, "grace", 3*time.Second, "how long connections may go on after Ctrl-C")
	f.IntVar(&o.maxConns, "max-conns", 0, "how many connections at a time, more wait; 0: no limit")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "tell of each connection")
	return c
}

func (o *proxyOptions) run(c *cobra.Command, listen, connect string) error {
	from, err := relay.ParseEndpoint(listen)
	if err != nil {
		return &usageError{err}
	}
	to, err := relay.ParseEndpoint(connect)
	if err != nil {
		return &usageError{err}
	}
	if o.timeout < 0 || o.grace < 0 || o.maxConns < 0 {
		return usagef("--timeout, --grace and --max-conns must not be negative")
	}
	ctx := c.Context()
	l, err := from.Listen(ctx, o.device)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(c.ErrOrStderr(), time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
	}
	r := &relay.Relay{
		Dial:    func(ctx context.Context) (net.Conn, error) { return to.Dial(ctx, o.device) },
		Timeout: o.timeout, Grace: o.grace, MaxConns: o.maxConns,
		Failed: func(id uint64, err error) {
			if id == 0 {
				say("accepting: %v", err)
				return
			}
			say("connection %d: %v", id, err)
		},
		Waiting: func(n int) { say("waiting %v for connections to end, %d are open; Ctrl-C ends them", o.grace, n) },
	}
	if o.verbose {
		r.Opened = func(id uint64, from, to net.Conn) {
			say("connection %d: from %s by %s to %s", id, name(from.RemoteAddr()), name(to.LocalAddr()), name(to.RemoteAddr()))
		}
		r.Ended = func(id uint64, t relay.Traffic, took time.Duration, err error) {
			how := "ended"
			if err != nil {
				how = err.Error()
			}
			say("connection %d: %s there, %s back, %v: %s", id, bytesText(t.Forth), bytesText(t.Back), took.Round(time.Millisecond), how)
		}
	}
	fmt.Fprintf(c.OutOrStdout(), "%s://%s -> %s\n", from.Network, l.Addr(), to)
	return r.Serve(ctx, l)
}

// name is an address, or what there is to say of one that has none, as the client of a Unix socket.
func name(a net.Addr) string {
	if s := a.String(); s != "" && s != "@" {
		return s
	}
	return "a " + a.Network() + " client"
}
