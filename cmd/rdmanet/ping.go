package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/doctor"
	"github.com/go-rdma/rdma/cmd/rdmanet/internal/rping"
	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

type pingOptions struct {
	device   string
	from     string
	port     uint16
	count    int
	interval time.Duration
	size     int
	timeout  time.Duration
	listen   bool
	quiet    bool
	asJSON   bool
}

func pingCommand() *cobra.Command {
	o := &pingOptions{}
	c := &cobra.Command{
		Use:   "ping HOST[:PORT] | ping --listen [HOST[:PORT]]",
		Short: "Reach a peer, or be reached",
		Long: `ping connects to a peer, names it some memory, and has it READ that and WRITE it back into other memory, which is compared.
So each ping is four messages, a READ and a WRITE. The protocol is that of rping of librdmacm: either program may be at either
end. The peer runs "rdmanet ping --listen", "rping -s -P" or, for one client, "rping -s".

An rping takes pings of up to 100 bytes, unless its -S says otherwise. The connection is a reliable one: nothing is lost without a
word, and what takes longer than --timeout ends the program.

The exit status is 0 if all pings came back, 1 if not.`,
		Example: `  rdmanet ping --listen
  rdmanet ping server
  rdmanet ping -c 10 -i 10ms -s 4096 -d rdmacore server
  rdmanet ping -c 1000 -i 0 -q server               # as fast as it goes`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	f := c.Flags()
	deviceFlag(c, &o.device)
	f.BoolVarP(&o.listen, "listen", "l", false, "be the one that is reached, by many and for ever")
	f.Uint16VarP(&o.port, "port", "p", rping.Port, "the port, if the address has none")
	f.IntVarP(&o.count, "count", "c", 0, "how many pings; 0: until Ctrl-C")
	f.DurationVarP(&o.interval, "interval", "i", time.Second, "time between two pings")
	f.IntVarP(&o.size, "size", "s", rping.DefaultSize, "bytes of a ping, at most 65536")
	f.DurationVar(&o.timeout, "timeout", 20*time.Second, "for connecting, and for each ping")
	f.StringVarP(&o.from, "from", "I", "", "the local `address` to connect from")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "only the summary")
	f.BoolVar(&o.asJSON, "json", false, "only the summary, for programs")
	return c
}

func (o *pingOptions) run(c *cobra.Command, args []string) error {
	if o.listen {
		address := ""
		if len(args) > 0 {
			address = args[0]
		}
		return o.serve(c, address)
	}
	switch {
	case len(args) == 0:
		return usagef("whom? Name a host, or --listen to be reached")
	case o.size < rping.MinSize || o.size > rping.MaxSize:
		return usagef("--size %d: a ping has %d to %d bytes", o.size, rping.MinSize, rping.MaxSize)
	case o.count < 0 || o.interval < 0 || o.timeout <= 0:
		return usagef("--count and --interval must not be negative, --timeout must be positive")
	case o.interval > rping.Idle/2:
		return usagef("--interval %v: a peer takes one that is silent for %v for dead", o.interval, rping.Idle)
	}
	var local netip.Addr
	if o.from != "" {
		var err error
		if local, err = netip.ParseAddr(o.from); err != nil {
			return usagef("--from: %w", err)
		}
	}
	return o.ping(c, local, o.withPort(args[0]))
}

// withPort adds the port to an address that has none.
func (o *pingOptions) withPort(address string) string { return withPort(address, o.port) }

func withPort(address string, port uint16) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	if n := len(address); n > 2 && address[0] == '[' && address[n-1] == ']' {
		address = address[1 : n-1]
	}
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

func (o *pingOptions) serve(c *cobra.Command, address string) error {
	ctx := c.Context()
	local, dual, err := cm.LookupListen(ctx, nil, cm.AnyFamily, o.withPort(address))
	if err != nil {
		return err
	}
	s, err := rping.Listen(ctx, o.device, local, dual)
	if err != nil {
		return explain(err)
	}
	s.Opened = func(client netip.AddrPort, device string) { c.Printf("%v: connected on %s\n", client, device) }
	s.Ended = func(client netip.AddrPort, pings int, err error) {
		if err != nil {
			c.PrintErrf("%v: after %d pings: %v\n", client, pings, err)
			return
		}
		c.Printf("%v: %d pings\n", client, pings)
	}
	if o.quiet {
		s.Opened, s.Ended = nil, nil
	}
	on, not := s.Devices()
	fmt.Fprintf(c.OutOrStdout(), "listening on %v for rping and rdmanet ping: %v\n", s.Addr(), on)
	if o.device != "" {
		for _, why := range not {
			c.PrintErrf("not on %s\n", why)
		}
	}
	stop := watchICRC(c)
	err = s.Serve(ctx)
	stop()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// watchICRC tells of packets that come with addresses or ports other than they were sent with: who sent them hears nothing, so
// here is where it shows.
func watchICRC(c *cobra.Command) (stop func()) {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for last := doctor.BadICRC(); ; {
			select {
			case <-t.C:
			case <-done:
				return
			}
			if n := doctor.BadICRC(); n != last {
				c.PrintErrf("%d packets came whose checksum (ICRC) does not fit their addresses and ports: something on the way rewrites them (NAT)\n", n-last)
				last = n
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// connect connects to the first address of a name that can be.
func (o *pingOptions) connect(ctx context.Context, local netip.Addr, address string) (*rping.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	addrs, err := cm.LookupDial(ctx, nil, cm.AnyFamily, address)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range addrs {
		p, err := rping.Connect(ctx, o.device, local, a, o.size)
		if err == nil {
			return p, nil
		}
		if first == nil {
			first = fmt.Errorf("connecting to %v: %w", a, explain(err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// pingSummary is what came of it, for programs.
type pingSummary struct {
	Peer        string       `json:"peer"`
	Provider    string       `json:"provider"`
	Device      string       `json:"device"`
	Size        int          `json:"size"`
	ConnectUS   float64      `json:"connect_us"`
	Sent        int          `json:"sent"`
	Back        int          `json:"back"`
	Retransmits uint64       `json:"retransmits"`
	RoundTripUS distribution `json:"round_trip_us"`
}

func (o *pingOptions) ping(c *cobra.Command, local netip.Addr, address string) error {
	ctx, out := c.Context(), c.OutOrStdout()
	quiet := o.quiet || o.asJSON
	start := time.Now()
	p, err := o.connect(ctx, local, address)
	if err != nil {
		return err
	}
	defer p.Close()
	connected := time.Since(start)
	device, provider := p.Device()
	peer := p.RemoteAddr()
	if !quiet {
		fmt.Fprintf(out, "%v from %v on %s (%s), %d bytes: connected in %v\n", peer, p.LocalAddr().Addr(), device, provider, o.size, short(connected))
	}
	progress := newProgress(c.ErrOrStderr(), o.quiet && !o.asJSON)
	var took []time.Duration
	sent := 0
	for next := time.Now(); ; {
		var d time.Duration
		d, err = o.once(ctx, p)
		sent++
		if err != nil {
			break
		}
		took = append(took, d)
		if quiet {
			progress.show("%d pings", sent)
		} else {
			fmt.Fprintf(out, "%d bytes from %v: seq=%d time=%v\n", o.size, peer, sent, short(d))
		}
		if sent == o.count || !sleepUntil(ctx, &next, o.interval) {
			break
		}
	}
	progress.clear()
	if ctx.Err() != nil && err != nil {
		err = nil // the one that Ctrl-C met does not count
		sent--
	}
	sum := pingSummary{
		Peer: peer.String(), Provider: provider, Device: device, Size: o.size, ConnectUS: micros(connected),
		Sent: sent, Back: len(took), Retransmits: p.Retransmits(), RoundTripUS: distributionOf(took),
	}
	if o.asJSON {
		if e := writeJSON(out, sum); e != nil {
			return e
		}
	} else {
		fmt.Fprintf(out, "--- %v: %d pings, %d came back, %d packets sent again\n", peer, sum.Sent, sum.Back, sum.Retransmits)
		if len(took) > 0 {
			fmt.Fprintf(out, "round trip in µs: %v\n", sum.RoundTripUS)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("ping %d of %v: %w", sent, peer, explain(err))
	case len(took) == 0:
		return errQuiet
	}
	return nil
}

func (o *pingOptions) once(ctx context.Context, p *rping.Client) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("no answer within %v: %w", o.timeout, syscall.ETIMEDOUT))
	defer cancel()
	return p.Ping(ctx)
}

// sleepUntil sleeps until the next time of a rhythm, which it moves on; false if ctx ends.
func sleepUntil(ctx context.Context, next *time.Time, interval time.Duration) bool {
	now := time.Now()
	*next = next.Add(interval)
	if next.Before(now) {
		*next = now
	}
	t := time.NewTimer(next.Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// explain adds to an error of connecting what to do.
func explain(err error) error {
	hint := ""
	var rej *verbs.RejectError
	switch {
	case errors.As(err, &rej) && rej.Reason == verbs.RejInvalidServiceID:
		hint = "the host is there and nobody listens on that port: run rdmanet ping --listen there, or rping -s -P"
	case errors.As(err, &rej) && rej.Reason == verbs.RejConsumer:
		hint = "the host is there, and who listens on that port speaks another protocol or is full: is it rdmanet ping --listen or rping?"
	case errors.Is(err, verbs.RemAccessErr), errors.Is(err, verbs.RemInvReqErr), errors.Is(err, verbs.RemOpErr):
		hint = "is the peer rdmanet ping --listen or rping, and -s at most what rping's -S says (100 by itself)?"
	case errors.Is(err, syscall.ECONNRESET):
		hint = "the peer ended the connection: it died, or speaks another protocol, or is an rping whose -S is less than this -s (100 by itself)"
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		hint = "nothing came back: is the host up, UDP port 4791 open in firewalls both ways, and no NAT between?"
	case errors.Is(err, verbs.ErrNoDevice), errors.Is(err, syscall.EADDRINUSE):
		hint = "rdmanet doctor tells more"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}
