// grpc-over-rdma makes calls of each kind that gRPC has, on RDMA queue pairs
// instead of TCP. What makes the difference is one line in server.go and one in
// client.go; the rest is grpc-go as everybody writes it.
//
//	grpc-over-rdma [demo] [-size MiB]               server and client processes, one command
//	grpc-over-rdma serve [-addr A] [-certs DIR]     the server alone
//	grpc-over-rdma call [-certs DIR] HOST:PORT      the client alone
//	grpc-over-rdma certs DIR [HOST...]              certificates for both
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
  grpc-over-rdma [demo] [-size MiB]             calls of all kinds between two processes, in plain and with mutual TLS
  grpc-over-rdma serve [-addr A] [-certs DIR]   serve; with -certs, to clients with a certificate
  grpc-over-rdma call [-certs DIR] HOST:PORT    call such a server
  grpc-over-rdma certs DIR [HOST...]            make certificates for a server on these hosts and a client
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
		fmt.Fprintln(os.Stderr, "grpc-over-rdma:", err)
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
		size    = fs.Int64("size", 16, "")
		addr    = fs.String("addr", ":50051", "")
		certs   = fs.String("certs", "", "")
		idle    = fs.Duration("idle", 3500*time.Millisecond, "") // without calls: longer than the server's keep-alive takes
		untilIn = fs.Bool("until-stdin-ends", false, "")         // so that a server does not outlive the demo
	)
	if err := fs.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	switch {
	case *size < 0:
	case command == "demo" && fs.NArg() == 0:
		return demo(ctx, *size<<20, *idle)
	case command == "serve" && fs.NArg() == 0:
		if *untilIn {
			ctx = untilStdinEnds(ctx)
		}
		return serve(ctx, *addr, *certs)
	case command == "call" && fs.NArg() == 1:
		return call(ctx, fs.Arg(0), *certs, *size<<20, *idle)
	case command == "certs" && fs.NArg() >= 1:
		return makeCerts(fs.Arg(0), fs.Args()[1:])
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
