// vm measures rdmanet on the Soft-RoCE device of a Linux guest, beside programs in C on the same device: rstream of librdmacm
// (rsockets, whose wire rdmanet's streams speak) and raw verbs of perftest, and on the embedded device, which does in the process what
// Soft-RoCE does in the kernel. All of it in one guest and one run, in turns. It prints a
// table and writes it to a file.
//
// The guest's processors are emulated. So figures mean nothing by themselves, and ratios something.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

type options struct {
	rounds  int
	scale   float64
	mtu     int
	run     string
	dir     string
	profile string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 7, "samples of each figure")
	flag.Float64Var(&o.scale, "scale", 1, "how many times as many transfers as usual a sample has")
	flag.IntVar(&o.mtu, "mtu", 4200, "of the device's interface; 4200 is a path MTU of 4096, 1500 one of 1024")
	flag.StringVar(&o.run, "run", ".", "`regexp` that picks rows by case and program")
	flag.StringVar(&o.dir, "o", "results", "`directory` for the table; empty: none")
	flag.StringVar(&o.profile, "profile", "", "`directory` for CPU profiles of rdmanet's programs, in their last round")
	inside := flag.String("inside", "", "measure in this guest, at this `address` (used by the program itself)")
	var p peerOptions
	flag.StringVar(&p.serve, "serve", "", "be rdmanet's server at this `address` (as well)")
	flag.StringVar(&p.dial, "dial", "", "be rdmanet's client of this `address` (as well)")
	flag.StringVar(&p.device, "device", "rdmacore", "rdmanet's `Device`, of a server or client")
	flag.StringVar(&p.ready, "ready", "", "`file` that a server makes when it listens")
	flag.IntVar(&p.size, "size", 64, "bytes of a transfer, of a server or client")
	flag.IntVar(&p.count, "count", 1, "transfers in one direction before those in the other")
	flag.IntVar(&p.iters, "iters", 100, "how often")
	flag.IntVar(&p.warm, "warm", 0, "how often before it counts")
	flag.BoolVar(&p.datagram, "datagrams", false, "send datagrams, all of them one way, of a server or client")
	flag.DurationVar(&p.busy, "busy", 0, "rdmanet's BusyPoll")
	flag.StringVar(&p.profile, "cpuprofile", "", "`file` for a CPU profile, of a server or client")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := func() error {
		switch {
		case flag.NArg() > 0:
			return fmt.Errorf("unexpected argument %q", flag.Arg(0))
		case p.serve != "" || p.dial != "":
			return p.main(ctx)
		case o.rounds < 1 || o.scale <= 0:
			return errors.New("-rounds and -scale must be positive")
		}
		if _, err := regexp.Compile(o.run); err != nil {
			return err
		}
		if *inside != "" {
			return measure(ctx, &o, *inside)
		}
		return outside(ctx, &o)
	}()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/vm:", err)
		os.Exit(1)
	}
}

const (
	guestShare = "/run/share" // what the runner calls the directory that both sides see
	guestAddr  = "10.9.0.1"   // and where its device is
	resultFile = "result.json"
	limit      = 30 * time.Minute
)

// outside boots a guest with this program in it, and reports what it found.
func outside(ctx context.Context, o *options) error {
	started := time.Now().UTC()
	m := describeHost()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	share, err := os.MkdirTemp("", "bench-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(share)
	// The guest may not see files of the host's /tmp.
	if err := copyFile(filepath.Join(share, "bench"), exe); err != nil {
		return err
	}
	args := []string{"run", "./vm/cmd/vm", "-rxe", "-mtu", strconv.Itoa(o.mtu), "-share", share, "-limit", limit.String(), "--"}
	args = append(args, guestShare+"/bench", "-inside", guestAddr, "-rounds", strconv.Itoa(o.rounds),
		"-scale", fmt.Sprint(o.scale), "-run", o.run)
	if o.profile != "" {
		args = append(args, "-profile", guestShare)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join("..", "test")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measuring in the guest (from ../test): %w", err)
	}
	b, err := os.ReadFile(filepath.Join(share, resultFile))
	if err != nil {
		return err
	}
	var r result
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	if o.profile != "" {
		if err := copyProfiles(o.profile, share, exe); err != nil {
			return err
		}
	}
	text := report(m, started, o, &r)
	fmt.Print("\n", text)
	if o.dir == "" {
		return nil
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	name := filepath.Join(o.dir, started.Format("2006-01-02-150405")+"-vm.md")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Println("\nwritten to", name)
	return nil
}

// copyProfiles keeps the profiles and the program that they are of.
func copyProfiles(dir, share, exe string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(share, "*.pprof"))
	if err != nil {
		return err
	}
	for _, f := range found {
		if err := copyFile(filepath.Join(dir, filepath.Base(f)), f); err != nil {
			return err
		}
	}
	return copyFile(filepath.Join(dir, "bench"), exe)
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
