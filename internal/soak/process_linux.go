package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is a peer as the conductor sees it.
type process struct {
	device, ip string
	addr       string // of its listener
	cmd        *exec.Cmd
	in         io.WriteCloser
	ended      chan struct{}

	stopped bool
	since   time.Time // of being stopped, or limited
	limited string    // what is lowered
	killed  bool
	first   *state // at rest, after the first phase that it lived through
}

// word is a line that a process said.
type word struct {
	from *process
	text string // empty: its last one
}

func startProcess(device, ip, addr string, words chan<- word) (*process, error) {
	p := &process{device: device, ip: ip, ended: make(chan struct{})}
	p.cmd = exec.Command("/proc/self/exe", "peer", device, addr)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20) // stacks are long
	if !sc.Scan() {
		_ = p.cmd.Wait() // it has told why
		return nil, fmt.Errorf("a process on %s at %s did not start", device, addr)
	}
	p.addr = strings.TrimPrefix(sc.Text(), "listening ")
	go func() {
		for sc.Scan() {
			words <- word{p, sc.Text()}
		}
		_ = p.cmd.Wait() // its state tells
		close(p.ended)
		words <- word{p, ""}
	}()
	return p, nil
}

func (p *process) String() string {
	return fmt.Sprintf("%s at %s (pid %d)", p.device, p.addr, p.cmd.Process.Pid)
}

// do tells a process what to do. One that was killed hears nothing.
func (p *process) do(format string, args ...any) { _, _ = fmt.Fprintf(p.in, format+"\n", args...) }

func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill() // it is there until it was waited for
	<-p.ended
}

// quit lets a process end. It fails if something is left.
func (p *process) quit() error {
	p.do("quit")
	select {
	case <-p.ended:
	case <-time.After(2 * restTime):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its stacks tell where it hangs
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
			p.kill()
		}
		return fmt.Errorf("%v does not end", p)
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("%v ends with %v", p, p.cmd.ProcessState)
	}
	return nil
}

// flows is how many sockets softroce keeps for flows, idle ones too: each has a goroutine and two descriptors.
const flows = 64

// judge compares a process at rest with what it was at its first rest.
func (p *process) judge(text string) error {
	var s state
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	if s.Busy > 0 || s.Conns > 0 || s.Left != "" {
		return fmt.Errorf("%v at rest has %d talks and %d connections: %s", p, s.Busy, s.Conns, strings.ReplaceAll(s.Left, " | ", "\n"))
	}
	if p.first == nil {
		p.first = &s
		return nil
	}
	f := p.first
	switch {
	case s.Goroutines > f.Goroutines+20+flows, s.Files > f.Files+30+2*flows, s.Mappings > f.Mappings+100, s.Heap > 2*f.Heap+16<<20:
		return fmt.Errorf("%v grows: %d goroutines, %d files, %d mappings, %d bytes of heap at its first rest, now %d, %d, %d, %d",
			p, f.Goroutines, f.Files, f.Mappings, f.Heap, s.Goroutines, s.Files, s.Mappings, s.Heap)
	}
	return nil
}
