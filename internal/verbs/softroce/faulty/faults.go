// Package faulty is, for tests, the embedded device of which one call fails, when that is asked for.
package faulty

import "sync"

// Faults makes one step fail: the nth time that it is taken.
type Faults struct {
	mu    sync.Mutex
	step  string
	n     int
	err   error
	fired bool
}

// Arm has the nth of the following calls of step fail with err; n is 0 for none.
func (f *Faults) Arm(step string, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step, f.n, f.err, f.fired = step, n, err, false
}

// Hit tells whether the call has failed that Arm was about.
func (f *Faults) Hit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// at is called with each step, and returns why it is not to be taken.
func (f *Faults) at(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if step != f.step {
		return nil
	}
	if f.n--; f.n != 0 {
		return nil
	}
	f.fired = true
	return f.err
}

// after is at for what is done all the same: an object that could not be closed in order is gone.
func (f *Faults) after(step string, err error) error {
	if e := f.at(step); e != nil {
		return e
	}
	return err
}
