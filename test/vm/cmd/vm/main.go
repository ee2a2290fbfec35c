// Command vm boots a guest, runs a program in it and ends with that program's exit status:
//
//	go run ./vm/cmd/vm -- ibv_devinfo
//	go run ./vm/cmd/vm -rxe -- sh -c 'rping -s -C1 -a 10.9.0.1 & sleep 1; rping -c -C1 -a 10.9.0.1'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/test/vm"
)

func main() {
	os.Exit(run())
}

func run() int {
	limit := flag.Duration("limit", 10*time.Minute, "kill the guest after this time and show its console")
	verbose := flag.Bool("v", false, "show the guest's console as it comes, and how long the boot took")
	stdin := flag.Bool("i", false, "pass on standard input")
	memory := flag.Int("m", 0, "memory in MiB")
	rxe := flag.Bool("rxe", false, "make a veth with rxe0 on it; its other end is in the namespace peer (10.9.0.1/2, fd09::1/2)")
	netns := flag.String("netns", "", "network namespace of the guest to run in")
	share := flag.String("share", "", "directory to use as /run/share, instead of a temporary one")
	mtu := flag.Int("mtu", 1500, "of the interfaces that -rxe makes")
	check := flag.Bool("check", false, "only see to it that this machine can run guests, and say why if it cannot")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: vm [flags] -- program [arguments]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 && !*check {
		flag.Usage()
		return 2
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeoutCause(ctx, *limit, fmt.Errorf("not done after %v", *limit))
	defer cancel()

	if *check {
		if err := vm.Check(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 125
		}
		return 0
	}
	cfg := vm.Config{MemoryMB: *memory}
	if *share != "" {
		var err error
		if cfg.Share, err = filepath.Abs(*share); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 125
		}
	}
	if *verbose {
		cfg.Console = os.Stderr
	}
	begin := time.Now()
	g, err := vm.Start(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	defer g.Close()
	if *rxe {
		if _, err := g.AddPeer(ctx, "peer", *mtu); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 125
		}
	}
	if *verbose {
		fmt.Fprintf(os.Stderr, "vm: Linux %s on %s, ready after %v\n", g.Info.Kernel, g.Accel, time.Since(begin).Round(time.Millisecond))
	}
	cmd := g.Command(ctx, flag.Arg(0), flag.Args()[1:]...).In(*netns)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if *stdin {
		cmd.Stdin = os.Stdin
	}
	err = cmd.Run()
	if exit := new(vm.ExitError); errors.As(err, &exit) {
		if exit.Signal != 0 {
			fmt.Fprintln(os.Stderr, err)
			return 128 + exit.Signal
		}
		return exit.Code
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if ctx.Err() != nil && g.Err() == nil {
			fmt.Fprintf(os.Stderr, "vm: the guest's console:\n%s\n", g.Console())
		}
		return 125
	}
	return 0
}
