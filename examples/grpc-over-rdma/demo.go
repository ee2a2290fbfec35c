package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// demo serves from another process and calls it from this one, in plain and with mutual TLS.
func demo(ctx context.Context, size int64, idle time.Duration) (err error) {
	certs, err := os.MkdirTemp("", "grpc-over-rdma-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(certs)) }()
	if err := makeCerts(certs, nil); err != nil {
		return err
	}
	for _, dir := range []string{"", certs} {
		if err := demoWith(ctx, dir, size, idle); err != nil {
			return err
		}
	}
	fmt.Print(`
Next, in two terminals, or the second on another machine:
  go run . serve -addr :50051
  go run . call HOST:50051
and with TLS, where DIR is for both to read:
  go run . certs DIR HOST
  go run . serve -addr :50051 -certs DIR
  go run . call -certs DIR HOST:50051
`)
	return nil
}

func demoWith(ctx context.Context, certs string, size int64, idle time.Duration) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.CommandContext(ctx, exe, "serve", "-addr", "127.0.0.1:0", "-certs", certs, "-until-stdin-ends")
	server.Stderr = os.Stderr
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	server.WaitDelay = 5 * time.Second
	in, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	// When its standard input ends, the server does; so it does if this process dies.
	defer func() {
		in.Close()
		if e := server.Wait(); e != nil && err == nil {
			err = fmt.Errorf("server: %w", e)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, addr, ok := strings.Cut(strings.TrimSpace(line), "serving at ")
	if !ok {
		return fmt.Errorf("the server did not start: %w", err)
	}
	how := "in plain"
	if certs != "" {
		how = "with mutual TLS"
	}
	fmt.Printf("server: process %d at %s, client: process %d, %s\n", server.Process.Pid, addr, os.Getpid(), how)
	return call(ctx, addr, certs, size, idle)
}
