package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/load"
	"github.com/go-rdma/rdma/rdmanet"
)

type benchOptions struct {
	device   string
	port     uint16
	listen   bool
	tcp      bool
	time     time.Duration
	rounds   int
	size     int
	write    int
	busyPoll time.Duration
	timeout  time.Duration
	asJSON   bool
}

func benchCommand() *cobra.Command {
	o := &benchOptions{}
	c := &cobra.Command{
		Use:   "bench HOST[:PORT] | bench --listen [HOST[:PORT]]",
		Short: "Measure round trips and streams",
		Long: `bench measures streams of package rdmanet between two processes: round trips of small messages, and how fast one end can send
to the other. With --tcp at both ends the same is done over TCP in the same run, in turns, so that what else the machines and
the network do falls on both alike.`,
		Example: `  rdmanet bench --listen --tcp
  rdmanet bench --tcp server
  rdmanet bench -t 10s -s 8 --busy-poll 1ms server`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.run(c, args) },
	}
	f := c.Flags()
	deviceFlag(c, &o.device)
	f.BoolVarP(&o.listen, "listen", "l", false, "be the server, for many and for ever")
	f.Uint16VarP(&o.port, "port", "p", load.Port, "the port, of RDMA and of TCP, if the address has none")
	f.BoolVar(&o.tcp, "tcp", false, "also over TCP")
	f.DurationVarP(&o.time, "time", "t", time.Second, "how long a round takes of each figure")
	f.IntVar(&o.rounds, "rounds", 3, "rounds of each figure")
	f.IntVarP(&o.size, "size", "s", 64, "bytes of a round trip's message")
	f.IntVarP(&o.write, "write", "w", 64<<10, "bytes of a stream's writes")
	f.DurationVar(&o.busyPoll, "busy-poll", 0, "how long a read of RDMA spins before it sleeps; 0: as seems good, negative: never")
	f.DurationVar(&o.timeout, "timeout", 20*time.Second, "for connecting")
	f.BoolVar(&o.asJSON, "json", false, "for programs")
	return c
}

func (o *benchOptions) run(c *cobra.Command, args []string) error {
	switch {
	case o.listen && len(args) == 0:
		return o.serve(c, fmt.Sprintf(":%d", o.port))
	case o.listen:
		return o.serve(c, withPort(args[0], o.port))
	case len(args) == 0:
		return usagef("against whom? Name a host, or --listen to be the server")
	case o.size < 1 || o.size > load.MaxSize || o.write < 1 || o.write > load.MaxSize:
		return usagef("--size and --write are 1 to %d bytes", load.MaxSize)
	case o.time <= 0 || o.rounds < 1 || o.timeout <= 0:
		return usagef("--time, --rounds and --timeout must be positive")
	}
	return o.measure(c, withPort(args[0], o.port))
}

func (o *benchOptions) serve(c *cobra.Command, address string) error {
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	lc := &rdmanet.ListenConfig{Device: o.device, BusyPoll: o.busyPoll}
	l, err := lc.Listen(ctx, "rdma", address)
	if err != nil {
		return err
	}
	all := []net.Listener{l}
	if o.tcp {
		// At the number that RDMA has got, should it have been free to choose.
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		at := net.JoinHostPort(host, fmt.Sprint(l.Addr().(*rdmanet.Addr).Port))
		tl, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
		if err != nil {
			l.Close()
			return err
		}
		all = append(all, tl)
	}
	var names []string
	for _, l := range all {
		names = append(names, l.Addr().Network()+" "+l.Addr().String())
	}
	fmt.Fprintf(c.OutOrStdout(), "listening on %s\n", strings.Join(names, ", "))
	done := make(chan error, len(all))
	for _, l := range all {
		go func() {
			err := load.Serve(ctx, l, func(client net.Addr, err error) { c.PrintErrf("%v: %v\n", client, err) })
			cancel(err)
			done <- err
		}()
	}
	var first error
	for range all {
		if err := <-done; first == nil {
			first = err
		}
	}
	return first
}

// carrier is what the figures of a column went over.
type carrier struct {
	name string
	dial load.Dialer

	Provider string `json:"provider,omitempty"`
	Device   string `json:"device,omitempty"`
	trips    []time.Duration
	rates    []float64

	RoundTripUS distribution `json:"round_trip_us"`
	MiBPerS     float64      `json:"mib_per_s"` // median of the rounds
	MinMiBPerS  float64      `json:"min_mib_per_s"`
	MaxMiBPerS  float64      `json:"max_mib_per_s"`
}

func (o *benchOptions) carriers(address string) []*carrier {
	r := &carrier{name: "rdma"}
	d := &rdmanet.Dialer{Device: o.device, BusyPoll: o.busyPoll, Timeout: o.timeout}
	r.dial = func(ctx context.Context) (net.Conn, error) {
		c, err := d.DialContext(ctx, "rdma", address)
		if err != nil {
			return nil, err
		}
		if rc, ok := rdmanet.Unwrap(c); ok {
			s := rc.Stats()
			r.Provider, r.Device = s.Provider, s.Device
		}
		return c, nil
	}
	all := []*carrier{r}
	if o.tcp {
		t := &net.Dialer{Timeout: o.timeout}
		all = append(all, &carrier{name: "tcp", dial: func(ctx context.Context) (net.Conn, error) {
			c, err := t.DialContext(ctx, "tcp", address)
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = fmt.Errorf("%w (was the server started with --tcp?)", err)
			}
			return c, err
		}})
	}
	return all
}

func (o *benchOptions) measure(c *cobra.Command, address string) error {
	ctx := c.Context()
	all := o.carriers(address)
	p := newProgress(c.ErrOrStderr(), true)
	defer p.clear()
	for round := range o.rounds {
		if round%2 == 1 {
			slices.Reverse(all)
		}
		for _, k := range all {
			if err := o.round(ctx, k, p, fmt.Sprintf("round %d of %d, %s", round+1, o.rounds, k.name)); err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
	}
	p.clear()
	slices.SortFunc(all, func(a, b *carrier) int { return strings.Compare(a.name, b.name) }) // RDMA first
	for _, k := range all {
		slices.Sort(k.rates)
		k.RoundTripUS = distributionOf(k.trips)
		k.MinMiBPerS, k.MaxMiBPerS = k.rates[0], k.rates[len(k.rates)-1]
		k.MiBPerS = (k.rates[(len(k.rates)-1)/2] + k.rates[len(k.rates)/2]) / 2
	}
	if o.asJSON {
		figures := map[string]any{"peer": address, "size": o.size, "write": o.write}
		for _, k := range all {
			figures[k.name] = k
		}
		return writeJSON(c.OutOrStdout(), figures)
	}
	o.report(c.OutOrStdout(), address, all)
	return nil
}

func (o *benchOptions) round(ctx context.Context, k *carrier, p *progress, what string) (err error) {
	k.trips, err = load.RoundTrips(ctx, k.dial, o.size, o.time, k.trips, func(n int) { p.show("%s: %d round trips", what, n) })
	if err != nil {
		return err
	}
	n, took, err := load.Stream(ctx, k.dial, o.write, o.time, func(n uint64) { p.show("%s: stream, %s", what, bytesText(int64(n))) })
	k.rates = append(k.rates, float64(n)/(1<<20)/took.Seconds())
	return err
}

func (o *benchOptions) report(w io.Writer, address string, all []*carrier) {
	r := all[0]
	fmt.Fprintf(w, "%s, RDMA on %s (%s), %d rounds of %v\n\n", address, r.Device, r.Provider, o.rounds, o.time)
	fmt.Fprintf(w, "round trip, %s, in µs\n%8s %10s %10s %10s %10s %10s %10s\n", bytesText(int64(o.size)), "", "min", "median", "90%", "99%", "99.9%", "max")
	for _, k := range all {
		d := k.RoundTripUS
		fmt.Fprintf(w, "%8s %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", k.name, d.Min, d.Median, d.P90, d.P99, d.P999, d.Max)
	}
	fmt.Fprintf(w, "\nstream, writes of %s, in MiB/s\n%8s %10s %10s %10s\n", bytesText(int64(o.write)), "", "min", "median", "max")
	for _, k := range all {
		fmt.Fprintf(w, "%8s %10.0f %10.0f %10.0f\n", k.name, k.MinMiBPerS, k.MiBPerS, k.MaxMiBPerS)
	}
	if len(all) == 2 {
		t := all[1]
		fmt.Fprintf(w, "\nRDMA beside TCP: round trips take %.2f times as long, streams are %.2f times as fast (medians)\n",
			r.RoundTripUS.Median/t.RoundTripUS.Median, r.MiBPerS/t.MiBPerS)
	}
}
