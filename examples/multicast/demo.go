package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// worker is one of the demo's processes.
type worker struct {
	name  string
	cmd   *exec.Cmd
	in    io.Closer // at whose end the process ends; so it does if this one dies
	lines *bufio.Scanner
}

func start(ctx context.Context, name string, args ...string) (*worker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{name: name, cmd: exec.CommandContext(ctx, exe, append(args, "-until-stdin-ends")...)}
	w.cmd.Stderr = os.Stderr
	w.cmd.Cancel = func() error { return w.cmd.Process.Signal(os.Interrupt) }
	w.cmd.WaitDelay = 5 * time.Second
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.lines = bufio.NewScanner(out)
	return w, w.cmd.Start()
}

// line is the next line that the process prints.
func (w *worker) line() string {
	if !w.lines.Scan() {
		return ""
	}
	fmt.Printf("%s, process %d: %s\n", w.name, w.cmd.Process.Pid, w.lines.Text())
	return w.lines.Text()
}

// wait waits for the end of the process and returns its last line.
func (w *worker) wait() (last string, err error) {
	for l := w.line(); l != ""; l = w.line() {
		last = l
	}
	w.in.Close()
	if err = w.cmd.Wait(); err != nil {
		err = fmt.Errorf("%s: %w", w.name, err)
	}
	return last, err
}

// demo has a publisher and subscribers that lose some of what they get, and checks that all have the same quotes in the end.
func demo(ctx context.Context, o *options) (err error) {
	ctx, stop := context.WithCancel(ctx)
	var all []*worker
	defer func() {
		stop()
		for _, w := range all {
			w.in.Close()
			_ = w.cmd.Wait() // those that are left, after a failure that says more
		}
	}()
	common := []string{"-group", o.group}
	if o.ifiName != "" {
		common = append(common, "-interface", o.ifiName)
	}
	for i := range o.subscribers {
		w, err := start(ctx, fmt.Sprint("subscriber ", i+1), append([]string{"subscribe", "-lose", fmt.Sprint(o.lose)}, common...)...)
		if err != nil {
			return err
		}
		all = append(all, w)
		if !strings.HasPrefix(w.line(), "subscribed") {
			return errors.New("a subscriber did not start")
		}
	}
	p, err := start(ctx, "publisher", append([]string{"publish", "-n", strconv.Itoa(o.quotes), "-rate", strconv.Itoa(o.rate)}, common...)...)
	if err != nil {
		return err
	}
	all = append(all, p)
	results := make(chan error, len(all))
	lasts := make([]string, len(all))
	for i, w := range all {
		go func() {
			var err error
			lasts[i], err = w.wait()
			results <- err
		}()
	}
	for range all {
		if e := <-results; e != nil && err == nil {
			err = e
			stop() // the others too
		}
	}
	all = nil
	if err != nil {
		return err
	}
	_, sum, _ := strings.Cut(lasts[o.subscribers], "sha-256 ")
	for i, l := range lasts[:o.subscribers] {
		if !strings.HasPrefix(l, strconv.Itoa(o.quotes)+" quotes in order") || !strings.HasSuffix(l, "sha-256 "+sum) {
			return fmt.Errorf("subscriber %d does not have what was published", i+1)
		}
	}
	fmt.Printf("\nall %d subscribers have all %d quotes, in order\n", o.subscribers, o.quotes)
	return nil
}
