// Package roles gives examples their command line: both ends of a connection in one process, or one of them in each of two.
package roles

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// Example is a program of two ends.
type Example struct {
	// Serve serves one client, or those it wants, at addr. It calls ready with the address to connect to.
	Serve func(ctx context.Context, out io.Writer, addr string, ready func(addr string)) error

	// Dial connects to addr and does what the example is about.
	Dial func(ctx context.Context, out io.Writer, addr string) error

	// Together says why both ends must be in one process; empty if they need not.
	Together string
}

// Usage parses the command line.
func Usage() {
	flag.Usage = func() {
		name := os.Args[0]
		fmt.Fprintf(flag.CommandLine.Output(), "usage: %s [flags]                  both ends in one process\n       %s [flags] serve ADDR:PORT\n       %s [flags] dial ADDR:PORT\n",
			name, name, name)
		flag.PrintDefaults()
	}
	flag.Parse()
}

// Main runs an example as its command line says, and exits.
func Main(e Example) {
	if !flag.Parsed() {
		Usage()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := e.Run(ctx, os.Stdout, flag.Args())
	stop()
	drain()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// drain gives the built-in device, which ends with this process, time to tell peers what is still to be told of connections that were closed.
func drain() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = rdmanet.Drain(ctx) // the time being over is no failure of what was done
}

// Run runs an example: "serve ADDR", "dial ADDR", or both if there are no arguments.
func (e Example) Run(ctx context.Context, out io.Writer, args []string) error {
	switch {
	case len(args) == 0:
		return e.both(ctx, out)
	case e.Together != "":
		return fmt.Errorf("both ends must be in one process, without arguments: %s", e.Together)
	case len(args) == 2 && args[0] == "serve":
		return e.Serve(ctx, out, args[1], func(addr string) { fmt.Fprintln(out, "serving at", addr) })
	case len(args) == 2 && args[0] == "dial":
		return e.Dial(ctx, out, args[1])
	}
	return fmt.Errorf("wrong usage: %s", strings.Join(args, " "))
}

func (e Example) both(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out = &locked{w: out}
	ready := make(chan string, 1)
	served := make(chan error, 1)
	go func() {
		err := e.Serve(ctx, prefixed{out, "server: "}, "127.0.0.1:0", func(addr string) { ready <- addr })
		if err != nil {
			cancel() // the client would wait for it
		}
		served <- err
	}()
	var err error
	select {
	case addr := <-ready:
		if err = e.Dial(ctx, prefixed{out, "client: "}, addr); err != nil {
			cancel()
		}
		if e := <-served; e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("server: %w", e))
		}
	case err = <-served:
	}
	return err
}

// locked keeps lines of several goroutines apart.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// prefixed says whose lines they are.
type prefixed struct {
	w      io.Writer
	prefix string
}

func (p prefixed) Write(b []byte) (int, error) {
	_, err := p.w.Write(append([]byte(p.prefix), b...))
	return len(b), err
}
