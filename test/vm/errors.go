package vm

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// UnavailableError says that this machine cannot run guests, and what would change that.
type UnavailableError struct {
	Reason  string
	Command string // to type, if there is one
}

func (e *UnavailableError) Error() string {
	if e.Command == "" {
		return "vm: no guest on this machine: " + e.Reason
	}
	return fmt.Sprintf("vm: no guest on this machine: %s; as root: %s", e.Reason, e.Command)
}

// Why a guest ended, beneath a [*GuestError].
var (
	ErrClosed = errors.New("the guest was closed")
	ErrPanic  = errors.New("the guest's kernel panicked")
	ErrExited = errors.New("the guest ended")
	ErrHung   = errors.New("the guest does not answer")
	ErrBoot   = errors.New("the guest did not boot in time")
)

// GuestError says why a guest is no more, with the end of its console.
type GuestError struct {
	Name    string
	Err     error
	Console string
}

func (e *GuestError) Error() string {
	if e.Console == "" || errors.Is(e.Err, ErrClosed) {
		return fmt.Sprintf("vm: %s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("vm: %s: %v; its console:\n%s", e.Name, e.Err, e.Console)
}

func (e *GuestError) Unwrap() error { return e.Err }

// ExitError says how a command failed.
type ExitError struct {
	Args   []string
	Code   int    // exit status, or -1 if a signal ended the process
	Signal int    // the signal, or 0
	Stderr []byte // its end, if the command was run by Output
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("vm: %s: exit status %d", strings.Join(e.Args, " "), e.Code)
	if e.Signal != 0 {
		s = fmt.Sprintf("vm: %s: killed by signal %d", strings.Join(e.Args, " "), e.Signal)
	}
	if len(e.Stderr) != 0 {
		s += "\n" + string(e.Stderr)
	}
	return s
}

// failed turns the failure of a program of the host into an error with its output.
func failed(what string, err error) error {
	if e := new(exec.ExitError); errors.As(err, &e) && len(e.Stderr) != 0 {
		return fmt.Errorf("vm: %s: %w\n%s", what, err, tail(string(e.Stderr), 4096))
	}
	return fmt.Errorf("vm: %s: %w", what, err)
}

// tail returns the last n bytes of s, from the start of a line.
func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	if _, rest, ok := strings.Cut(s, "\n"); ok {
		s = rest
	}
	return "[...]\n" + s
}
