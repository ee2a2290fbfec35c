// bench measures rdmanet beside package net's TCP over loopback: the same
// programs on both, in one run, in turns, so that what else the machine does
// falls on both alike. It prints a table and writes it to a file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.device, "device", "softroce", "rdmanet's `Device` to measure")
	flag.IntVar(&o.rounds, "rounds", 11, "samples of each figure")
	flag.DurationVar(&o.sample, "sample", 500*time.Millisecond, "how long a sample takes, about")
	run := flag.String("run", ".", "`regexp` that picks cases by name")
	dir := flag.String("o", "results", "`directory` for the table; empty: none")
	peer := flag.Bool("peer", false, "be the other process (used by the program itself)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := func() (err error) {
		if flag.NArg() > 0 {
			return fmt.Errorf("unexpected argument %q", flag.Arg(0))
		}
		if o.rounds < 1 || o.sample <= 0 {
			return errors.New("-rounds and -sample must be positive")
		}
		if o.run, err = regexp.Compile(*run); err != nil {
			return err
		}
		if *peer {
			return servePeer(ctx, o.device)
		}
		return bench(ctx, &o, *dir)
	}()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, o *options, dir string) error {
	m := describeMachine()
	rows, err := measureAll(ctx, o)
	if err != nil {
		return err
	}
	text := report(m, o, rows)
	fmt.Print("\n", text)
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(dir, m.date.Format("2006-01-02-150405")+".md")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Println("\nwritten to", name)
	return nil
}
