// rpmaops measures package rpma: operations of some lengths, one at a time and 32, how many a second and how long each takes. By itself it does so
// between two processes on the embedded device; with -vm in a Linux guest with Soft-RoCE, beside perftest (raw verbs in C)
// on the same device, in one run and in turns. It prints a table and writes it to a file.
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

type options struct {
	device, serve, dial string
	rounds              int
	sample              time.Duration
	run                 string
	dir                 string
	one                 string
	pick                *regexp.Regexp
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "softroce", "the `provider` to measure")
	flag.IntVar(&o.rounds, "rounds", 3, "samples of each figure")
	flag.DurationVar(&o.sample, "sample", 250*time.Millisecond, "how long a sample takes, about")
	flag.StringVar(&o.run, "run", ".", "`regexp` that picks cases by name")
	flag.StringVar(&o.dir, "o", "results", "`directory` for the table; empty: none")
	vm := flag.Bool("vm", false, "measure in a guest, beside perftest")
	inside := flag.String("inside", "", "be in a guest and measure at this `address` (used by the program itself)")
	flag.StringVar(&o.serve, "serve", "", "be the other process, at this `address` (used by the program itself)")
	flag.StringVar(&o.dial, "dial", "", "measure once with the process at this `address` (used by the program itself)")
	flag.StringVar(&o.one, "case", "", "`name` of what -dial measures")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := func() (err error) {
		if flag.NArg() > 0 {
			return fmt.Errorf("unexpected argument %q", flag.Arg(0))
		}
		if o.rounds < 1 || o.sample <= 0 {
			return errors.New("-rounds and -sample must be positive")
		}
		if o.pick, err = regexp.Compile(o.run); err != nil {
			return err
		}
		// The library looks for a device where this says.
		if err := os.Setenv("RDMANET_DEVICE", o.device); err != nil {
			return err
		}
		switch {
		case o.serve != "":
			return serve(ctx, o.serve)
		case o.dial != "":
			return dialOnce(ctx, &o)
		case *inside != "":
			return measureInside(ctx, &o, *inside)
		case *vm:
			return outside(ctx, &o)
		}
		return onHost(ctx, &o)
	}()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/rpmaops:", err)
		os.Exit(1)
	}
}

// write prints a report and writes it to a file.
func (o *options) write(started time.Time, kind, text string) error {
	fmt.Print("\n", text)
	if o.dir == "" {
		return nil
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(o.dir, started.Format("2006-01-02-150405")+kind+".md")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Println("\nwritten to", name)
	return nil
}
