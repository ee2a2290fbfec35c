package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/test/vm/internal/proto"
)

// Cmd is a command in a guest, used like that of os/exec.
//
// When its context ends, its whole session is killed: the process and its children, unless they made a
// session of their own.
type Cmd struct {
	Args  []string
	Env   []string // "NAME=value", added to the guest's own, which is not that of the host
	Dir   string   // /tmp if empty
	Netns string   // network namespace of the guest to run in; the initial one if empty

	Stdin  io.Reader // /dev/null if nil
	Stdout io.Writer // /dev/null if nil; if equal to Stderr, one pipe serves both
	Stderr io.Writer

	Pid int // in the guest, set by Start

	g       *Guest
	ctx     context.Context
	control net.Conn
	writeMu sync.Mutex // of control
	stop    func() bool
	copies  sync.WaitGroup
	output  error // of copying Stdout or Stderr, once copies is done
	once    sync.Mutex
	waited  bool
}

// Command makes a command; name is looked up in the guest's PATH.
func (g *Guest) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), g: g, ctx: ctx}
}

// In makes the command run in a network namespace of the guest.
func (c *Cmd) In(netns string) *Cmd {
	c.Netns = netns
	return c
}

func (c *Cmd) String() string { return strings.Join(c.Args, " ") }

// Start starts the command.
func (c *Cmd) Start() error {
	if c.control != nil {
		return errors.New("vm: command already started")
	}
	if err := c.ctx.Err(); err != nil {
		return err
	}
	id := c.g.nextID.Add(1)
	message := proto.Command{Args: c.Args, Env: c.Env, Dir: c.Dir, Netns: c.Netns}
	message.StderrToStdout = c.Stdout != nil && sameWriter(c.Stdout, c.Stderr)
	message.Stdin, message.Stdout = c.Stdin != nil, c.Stdout != nil
	message.Stderr = c.Stderr != nil && !message.StderrToStdout

	var opened []net.Conn
	open := func(kind string) (net.Conn, error) {
		s, err := c.g.open(kind, id)
		if err == nil {
			opened = append(opened, s)
		}
		return s, err
	}
	err := func() error {
		control, err := open(proto.KindRun)
		if err != nil {
			return err
		}
		if err := proto.Send(control, message); err != nil {
			return c.g.reason(err)
		}
		var stdin net.Conn
		if message.Stdin {
			if stdin, err = open(proto.KindStdin); err != nil {
				return err
			}
		}
		if message.Stdout {
			s, err := open(proto.KindStdout)
			if err != nil {
				return err
			}
			c.copy(c.Stdout, s)
		}
		if message.Stderr {
			s, err := open(proto.KindStderr)
			if err != nil {
				return err
			}
			c.copy(c.Stderr, s)
		}
		var started proto.Started
		if err := proto.Receive(control, &started); err != nil {
			return c.g.reason(err)
		}
		if started.Err != "" {
			return fmt.Errorf("vm: %s: %s", c, started.Err)
		}
		c.Pid, c.control = started.PID, control
		if stdin != nil {
			// Not waited for: a reader may block for good, as with os/exec it would.
			go func() {
				_, _ = io.Copy(stdin, c.Stdin)
				_ = stdin.Close()
			}()
		}
		return nil
	}()
	if err != nil {
		for _, s := range opened {
			_ = s.Close()
		}
		return err
	}
	c.stop = context.AfterFunc(c.ctx, func() { _ = c.signal(syscall.SIGKILL, true) })
	return nil
}

func sameWriter(a, b io.Writer) (same bool) {
	defer func() { _ = recover() }() // of types that cannot be compared
	return a == b
}

func (c *Cmd) copy(w io.Writer, s net.Conn) {
	c.copies.Go(func() {
		defer s.Close()
		if _, err := io.Copy(w, s); err != nil {
			c.once.Lock()
			if c.output == nil {
				c.output = err
			}
			c.once.Unlock()
			_, _ = io.Copy(io.Discard, s) // or the process would stand still
		}
	})
}

// Signal sends a signal to the process.
func (c *Cmd) Signal(s syscall.Signal) error { return c.signal(s, false) }

// Kill sends SIGKILL to the process and its children.
func (c *Cmd) Kill() error { return c.signal(syscall.SIGKILL, true) }

func (c *Cmd) signal(s syscall.Signal, group bool) error {
	if c.control == nil {
		return errors.New("vm: command not started")
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	return proto.Send(c.control, proto.Signal{Signal: int(s), Group: group})
}

// killGrace is how long a guest may take to kill the processes of a command whose context has ended.
const killGrace = time.Minute

// Wait waits until the command has ended and its output is there. The error is an [*ExitError] if it failed,
// that of the context if that ended it, and a [*GuestError] if the guest died.
func (c *Cmd) Wait() error {
	if c.control == nil {
		return errors.New("vm: command not started")
	}
	if c.waited {
		return errors.New("vm: Wait was called before")
	}
	c.waited = true
	limit := context.AfterFunc(c.ctx, func() { _ = c.control.SetReadDeadline(time.Now().Add(killGrace)) })
	defer limit()
	var exited proto.Exited
	err := proto.Receive(c.control, &exited)
	inTime := c.stop()
	_ = c.control.Close()
	if err != nil {
		if !inTime && c.g.Err() == nil {
			return fmt.Errorf("vm: %s: %w, and it did not end when killed", c, context.Cause(c.ctx))
		}
		return c.g.reason(err)
	}
	c.copies.Wait()
	switch {
	case !inTime && (exited.Code != 0 || exited.Err != ""):
		return fmt.Errorf("vm: %s: %w", c, context.Cause(c.ctx))
	case exited.Err != "":
		return fmt.Errorf("vm: %s: %s", c, exited.Err)
	case exited.Code != 0:
		return &ExitError{Args: c.Args, Code: exited.Code, Signal: exited.Signal}
	case c.output != nil:
		return fmt.Errorf("vm: %s: its output: %w", c, c.output)
	}
	return nil
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("vm: Stdout is set")
	}
	var out, errout bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &errout
	}
	err := c.Run()
	if e := new(ExitError); errors.As(err, &e) {
		e.Stderr = []byte(tail(errout.String(), 8192))
	}
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and error, in their order.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("vm: Stdout or Stderr is set")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}
