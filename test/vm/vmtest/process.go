package vmtest

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-rdma/rdma/test/vm"
)

// Patience is for one step of a process. Emulated processors may take a hundred times what real ones do.
const Patience = 3 * time.Minute

// Process is a program that runs in a guest. A test that fails logs what it wrote; what still runs when a
// test ends is killed.
type Process struct {
	Cmd  *vm.Cmd
	Done chan struct{} // closed at its end

	tb  testing.TB
	out output
	err error // valid when Done is closed
}

type output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	grown chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.grown)
	o.grown = make(chan struct{})
	return o.b.Write(b)
}

func (o *output) get() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String(), o.grown
}

// Run starts a command, whose output it takes.
func Run(tb testing.TB, c *vm.Cmd) *Process {
	tb.Helper()
	p := &Process{Cmd: c, Done: make(chan struct{}), tb: tb}
	p.out.grown = make(chan struct{})
	c.Stdout, c.Stderr = &p.out, &p.out
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		p.err = c.Wait()
		close(p.Done)
	}()
	tb.Cleanup(func() {
		select {
		case <-p.Done:
		default:
			_ = c.Kill() // it may end meanwhile
			<-p.Done
		}
		if tb.Failed() {
			tb.Logf("%s: %v\n%s", c, p.err, p.Output())
		}
	})
	return p
}

// Output is what the process has written so far.
func (p *Process) Output() string {
	out, _ := p.out.get()
	return out
}

// Says waits until the process has written what.
func (p *Process) Says(what string) {
	p.tb.Helper()
	limit := time.After(Patience)
	for {
		out, grown := p.out.get()
		if strings.Contains(out, what) {
			return
		}
		select {
		case <-grown:
		case <-p.Done:
			if !strings.Contains(p.Output(), what) {
				p.tb.Fatalf("%s ended without saying %q", p.Cmd, what)
			}
		case <-limit:
			p.tb.Fatalf("%s does not say %q", p.Cmd, what)
		}
	}
}

// Ends waits for the end of the process and returns what it wrote.
func (p *Process) Ends() (string, error) {
	p.tb.Helper()
	select {
	case <-p.Done:
	case <-time.After(Patience):
		p.tb.Fatalf("%s does not end", p.Cmd)
	}
	return p.Output(), p.err
}

// Succeeds waits for the end of the process with status 0 and returns what it wrote.
func (p *Process) Succeeds() string {
	p.tb.Helper()
	out, err := p.Ends()
	if err != nil {
		p.tb.Fatalf("%v\n%s", err, out)
	}
	return out
}

// Fails waits for the end of the process with another status.
func (p *Process) Fails() string {
	p.tb.Helper()
	out, err := p.Ends()
	if exit := new(vm.ExitError); !errors.As(err, &exit) {
		p.tb.Fatalf("%s was to fail, but: %v\n%s", p.Cmd, err, out)
	}
	return out
}

// Kill ends the process by SIGKILL and returns when that was.
func (p *Process) Kill() time.Time {
	p.tb.Helper()
	at := time.Now()
	if err := p.Cmd.Kill(); err != nil {
		p.tb.Fatal(err)
	}
	_, err := p.Ends()
	if exit := new(vm.ExitError); !errors.As(err, &exit) || exit.Signal != int(syscall.SIGKILL) {
		p.tb.Fatalf("%s was to be killed, but: %v", p.Cmd, err)
	}
	return at
}
