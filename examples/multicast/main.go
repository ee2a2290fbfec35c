// multicast is a feed of quotes as market data comes: a publisher numbers what it sends to a group, subscribers
// notice what they miss by the numbers and ask the publisher for it, which sends it to them alone.
//
//	multicast [demo] [-n quotes] [-lose p]      publisher and subscribers, a process each, one command
//	multicast publish [flags]                   the publisher alone
//	multicast subscribe [flags]                 a subscriber alone
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage:
  multicast [demo] [-n quotes] [-rate per-second] [-lose probability] [-subscribers n] [-interface name]
  multicast publish [-n quotes] [-rate per-second] [-group address] [-interface name]
  multicast subscribe [-lose probability] [-group address] [-interface name]
`

var errUsage = errors.New("wrong usage")

// options are those of all commands.
type options struct {
	quotes      int
	rate        int
	lose        float64 // how much a subscriber throws away, to have something to repair
	subscribers int
	group       string
	ifi         *net.Interface // nil: by route
	ifiName     string
	untilIn     bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case interrupted:
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "multicast:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command := "demo"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		command, args = args[0], args[1:]
	}
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	var o options
	fs.IntVar(&o.quotes, "n", 50_000, "")
	fs.IntVar(&o.rate, "rate", 20_000, "")
	fs.Float64Var(&o.lose, "lose", -1, "")
	fs.IntVar(&o.subscribers, "subscribers", 3, "")
	fs.StringVar(&o.group, "group", "239.255.8.1", "")
	fs.StringVar(&o.ifiName, "interface", "", "")
	fs.BoolVar(&o.untilIn, "until-stdin-ends", false, "") // so that nothing outlives the demo
	if err := fs.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	if o.lose < 0 {
		o.lose = 0
		if command == "demo" {
			o.lose = 0.02
		}
	}
	if fs.NArg() > 0 || o.quotes < 1 || o.rate < 1 || o.lose >= 1 || o.subscribers < 1 {
		fs.Usage()
		return errUsage
	}
	if o.ifiName != "" {
		var err error
		if o.ifi, err = net.InterfaceByName(o.ifiName); err != nil {
			return fmt.Errorf("-interface %s: %w", o.ifiName, err)
		}
	}
	if o.untilIn {
		ctx = untilStdinEnds(ctx)
	}
	switch command {
	case "demo":
		return demo(ctx, &o)
	case "publish":
		return publish(ctx, &o)
	case "subscribe":
		return subscribe(ctx, &o)
	}
	fs.Usage()
	return errUsage
}

func untilStdinEnds(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		buf := make([]byte, 1)
		for {
			if _, err := os.Stdin.Read(buf); err != nil {
				return
			}
		}
	}()
	return ctx
}

// sleep waits, and tells whether the context has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
