package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
)

// keepBusy keeps a processor busy until standard input ends.
func keepBusy() {
	done := make(chan struct{})
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // nothing comes
		close(done)
	}()
	for x := uint64(1); ; {
		select {
		case <-done:
			runtime.KeepAlive(x)
			return
		default:
		}
		for range 1 << 16 {
			x = x*6364136223846793005 + 1442695040888963407
		}
	}
}

// busyMachine has one process for each processor keep it busy, until stop.
func busyMachine(ctx context.Context) (stop func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for range runtime.NumCPU() {
		cmd := exec.CommandContext(ctx, exe, "-load")
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, func() {
			in.Close()
			_ = cmd.Wait() // it has no result
		})
	}
	return stop, nil
}
