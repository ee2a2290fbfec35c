package rc

import (
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// Goroutines that can run wait where one who spins holds the processor: the runtime takes it away after 10 ms only. The runtime counts them,
// and asking is cheap, 100 ns with few processors. With many it is not, so asking may only take a small part of the time.

const (
	askPart = 64 // of the time
	askMost = int64(time.Millisecond)
)

var asked struct {
	mu     sync.Mutex
	sample [1]metrics.Sample
	again  atomic.Int64 // not before
}

// answer is what wanted says.
type answer uint8

const (
	unknown answer = iota // it was asked a moment ago
	unwanted
	wanted
)

// askWanted tells whether goroutines of this process wait for a processor. It does not ask each time, but if it shall do so now.
func askWanted(t int64, shall bool) answer {
	if t < asked.again.Load() && !shall || !asked.mu.TryLock() {
		return unknown
	}
	defer asked.mu.Unlock()
	s := &asked.sample[0]
	s.Name = "/sched/goroutines/runnable:goroutines"
	metrics.Read(asked.sample[:])
	end := now()
	asked.again.Store(end + min(askPart*(end-t), askMost))
	if s.Value.Kind() == metrics.KindUint64 && s.Value.Uint64() > 0 {
		return wanted
	}
	return unwanted
}
