package cm

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Cause is why one provider or device does not serve an address.
type Cause struct {
	Name string // of the provider or device
	Err  error
}

func (c Cause) String() string { return c.Name + ": " + c.text() }

// text is the cause without the name.
func (c Cause) text() string {
	s := strings.ReplaceAll(c.Err.Error(), "\n", " ")
	// What every cause would repeat is said once, by NoDeviceError.
	s = strings.TrimPrefix(s, c.Name+": ")
	if _, cause, ok := strings.Cut(s, verbs.ErrNoDevice.Error()+": "); ok {
		s = cause // in front stands what was being done
	}
	s = strings.TrimSuffix(s, ": "+verbs.ErrNoDevice.Error())
	return s
}

// NoDeviceError says that no device serves an address, and why each one that was
// tried does not. It is [verbs.ErrNoDevice] to errors.Is.
type NoDeviceError struct {
	Target string // an address, as text
	Listed bool   // somebody's list said what to try
	Tried  []Cause

	// HostOnly: shared memory would serve it, for this host's processes alone.
	HostOnly bool
}

// InUse names the provider or device that something on this host is in the way of and that can be asked to leave it, if any. A
// port of shared memory is no such matter where there is another.
func (e *NoDeviceError) InUse() string {
	if i := e.inUse(); i >= 0 {
		return e.Tried[i].Name
	}
	return ""
}

func (e *NoDeviceError) inUse() int {
	best := -1
	for i, c := range e.Tried {
		if errors.Is(c.Err, syscall.EADDRINUSE) && (best < 0 || e.Tried[best].Name == Shm) {
			best = i
		}
	}
	return best
}

func (e *NoDeviceError) Error() string {
	s := "no RDMA device serves " + e.Target
	first := e.inUse()
	var causes []string
	for i, c := range e.Tried {
		if i == first {
			s = c.text() + ": " + s // which comes first
		} else {
			causes = append(causes, c.String())
		}
	}
	if len(causes) > 0 {
		s += " (" + strings.Join(causes, "; ") + ")"
	}
	return s
}

func (e *NoDeviceError) Is(target error) bool { return target == verbs.ErrNoDevice }

// Unwrap gives the causes.
func (e *NoDeviceError) Unwrap() []error {
	errs := make([]error, len(e.Tried))
	for i, c := range e.Tried {
		errs[i] = c.Err
	}
	return errs
}

// RefusedError says that nobody listens at an address of this host, whose processes are reached over shared memory, and that no device
// serves the address, on which somebody might.
type RefusedError struct {
	Target string
	Others []Cause
}

func (e *RefusedError) Error() string {
	s := e.Unwrap().Error()
	if len(e.Others) > 0 {
		causes := make([]string, len(e.Others))
		for i, c := range e.Others {
			causes[i] = c.String()
		}
		s += ", and no device serves " + e.Target + " (" + strings.Join(causes, "; ") + ")"
	}
	return s
}

// Unwrap gives the refusal.
func (e *RefusedError) Unwrap() error {
	return &verbs.RejectError{Reason: verbs.RejInvalidServiceID}
}

// ProviderError tells where an error happened.
type ProviderError struct {
	Provider, Device string
	Err              error
}

func (e *ProviderError) Error() string { return e.Err.Error() }
func (e *ProviderError) Unwrap() error { return e.Err }

// causeError is a cause of ErrNoDevice.
type causeError string

func (e causeError) Error() string        { return string(e) }
func (e causeError) Is(target error) bool { return target == verbs.ErrNoDevice }

func noDevicef(format string, args ...any) error { return causeError(fmt.Sprintf(format, args...)) }

// errNotInBuild is the cause of a provider that other builds have.
var errNotInBuild = noDevicef("not part of this build")

// unusableError is a device's reason to be of no use, as a cause of ErrNoDevice.
type unusableError struct{ error }

func (e unusableError) Unwrap() error        { return e.error }
func (e unusableError) Is(target error) bool { return target == verbs.ErrNoDevice }

// UnaskedError is why softroce is used only if it is named.
type UnaskedError struct{ Why string }

func (e *UnaskedError) Error() string        { return "not used unless it is named: " + e.Why }
func (e *UnaskedError) Is(target error) bool { return target == verbs.ErrNoDevice }

func unaskedf(format string, args ...any) error { return &UnaskedError{fmt.Sprintf(format, args...)} }
