// http-over-rdma serves a directory over HTTP and fetches it again, on RDMA
// queue pairs instead of TCP. What makes the difference is one line in
// server.go and one in client.go; the rest is net/http as everybody writes it.
//
//	http-over-rdma [demo] [-size MiB]     a server's and two clients' processes, one command
//	http-over-rdma serve [-addr A] DIR    the server alone
//	http-over-rdma get [-v] URL           the client alone
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

const usage = `usage:
  http-over-rdma [demo] [-size MiB]     serve a generated tree and fetch it twice, in processes
  http-over-rdma serve [-addr A] DIR    serve DIR
  http-over-rdma get [-v] URL           fetch all below URL and check it against URL/SHA256SUMS
`

var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	drain()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2)
	case interrupted:
		fmt.Fprintln(os.Stderr, "interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "http-over-rdma:", err)
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
	var (
		size    = fs.Int64("size", 256, "")
		addr    = fs.String("addr", ":8080", "")
		untilIn = fs.Bool("until-stdin-ends", false, "") // so that a server does not outlive the demo
		verbose = fs.Bool("v", false, "")
	)
	if err := fs.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	switch {
	case command == "demo" && fs.NArg() == 0 && *size >= 0:
		return demo(ctx, *size<<20)
	case command == "serve" && fs.NArg() == 1:
		if *untilIn {
			ctx = untilStdinEnds(ctx)
		}
		return serve(ctx, *addr, fs.Arg(0))
	case command == "get" && fs.NArg() == 1:
		return get(ctx, fs.Arg(0), *verbose)
	}
	fs.Usage()
	return errUsage
}

// drain gives the built-in device, which ends with this process, time to tell
// peers what is still to be told of connections that were closed.
func drain() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = rdmanet.Drain(ctx) // the time being over is no failure of what was done
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
