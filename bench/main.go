// bench measures rdmanet, on a network and over shared memory, beside package net's TCP and Unix sockets and beside quic-go: the same
// programs on all of them, in one run, in turns, so that what else the machine does falls on all alike. It prints tables and writes
// them to a file, with plots.
//
// By itself it does what takes five minutes. With -run it does what is named, also what takes longer: "-run grid" is HTTP and gRPC over
// a grid of connections, requests on each and sizes, "-run idle" is 10,000 connections that do nothing, "-run ." is all.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"syscall"
	"time"
)

type options struct {
	device string
	rounds int
	sample time.Duration
	pick   func(name string, byItself bool) bool
	sides  *regexp.Regexp // nil: each case's own
	idle   int            // connections
	settle time.Duration  // how long they do nothing

	processes int // only with so many; 0: with one and with two

	profile string // directory
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "softroce", "rdmanet's `Device` to measure")
	flag.IntVar(&o.rounds, "rounds", 7, "samples of each figure")
	flag.DurationVar(&o.sample, "sample", 250*time.Millisecond, "how long a sample takes, about")
	flag.IntVar(&o.idle, "conns", 10000, "connections of the idle case")
	flag.DurationVar(&o.settle, "settle", 10*time.Second, "how long the connections of the idle case do nothing")
	flag.IntVar(&o.processes, "processes", 0, "`1 or 2`: round trips, streams and HTTP only within one process, or between two; 0: both")
	run := flag.String("run", "", "`regexp` that picks cases by name, also those that take long; empty: those that do not")
	sides := flag.String("sides", "", "`regexp` that picks sides by name, of all there are; the others are compared with the first. Empty: those of each case")
	flag.StringVar(&o.profile, "profile", "", "`directory` for CPU profiles of both processes, of all that is run")
	dir := flag.String("o", "results", "`directory` for tables and plots; empty: none")
	list := flag.Bool("list", false, "list the cases, those that are not run without -run marked +")
	peer := flag.Bool("peer", false, "be the other process (used by the program itself)")
	load := flag.Bool("load", false, "keep a processor busy (used by the program itself)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := func() (err error) {
		switch {
		case flag.NArg() > 0:
			return fmt.Errorf("unexpected argument %q", flag.Arg(0))
		case o.processes < 0 || o.processes > 2:
			return fmt.Errorf("-processes is 1 or 2, not %d", o.processes)
		case o.rounds < 1 || o.sample <= 0 || o.idle < 2:
			return errors.New("-rounds and -sample must be positive, -conns at least 2")
		case *peer:
			return profiled(o.profile, "peer", func() error { return servePeer(ctx, o.device) })
		case *load:
			keepBusy()
			return nil
		case *list:
			listCases()
			return nil
		}
		if *sides != "" {
			if o.sides, err = regexp.Compile(*sides); err != nil {
				return err
			}
		}
		if o.pick, err = picker(*run); err != nil {
			return err
		}
		return profiled(o.profile, "bench", func() error { return bench(ctx, &o, *dir) })
	}()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// profiled writes a profile of what f does, if there is a directory for it.
func profiled(dir, name string, f func() error) error {
	if dir == "" {
		return f()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, name+"-*.pprof")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

// picker tells which cases are run.
func picker(run string) (func(name string, byItself bool) bool, error) {
	if run == "" {
		return func(_ string, byItself bool) bool { return byItself }, nil
	}
	re, err := regexp.Compile(run)
	return func(name string, _ bool) bool { return re.MatchString(name) }, err
}

func listCases() {
	for _, c := range cases {
		fmt.Println(" ", c.name)
	}
	for _, c := range datagramCases {
		fmt.Println(" ", c.name())
	}
	for _, c := range cells() {
		fmt.Println("+", c.name())
	}
	for _, s := range idleSides {
		fmt.Println("+", idleName(s))
	}
}

func bench(ctx context.Context, o *options, dir string) error {
	r := &results{machine: describeMachine(), o: o}
	if err := r.measure(ctx); err != nil {
		if ctx.Err() != nil {
			fmt.Print("\n", r.report(), "\nInterrupted: this is not all.\n")
		}
		return err
	}
	fmt.Print("\n", r.report())
	if dir == "" {
		return nil
	}
	name, err := r.write(dir)
	if err != nil {
		return err
	}
	fmt.Println("\nwritten to", name)
	return nil
}
