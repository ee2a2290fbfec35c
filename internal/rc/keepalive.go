package rc

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Package net's defaults.
const (
	keepIdle     = 15 * time.Second
	keepInterval = 15 * time.Second
	keepCount    = 9
)

// Kept is what a [KeepAlive] looks after. Its methods are called by a timer's goroutine, one at a time, and not after Stop.
type Kept interface {
	// Probe posts a request of no bytes, unless one is on its way. Its acknowledgement is to be told with Touch.
	Probe()
	// RNRs counts what a peer says that has no receive posted: it lives.
	RNRs() uint64
	// Lost says that the peer gave no sign of life. It must not call Stop.
	Lost()
}

// KeepAlive notices a peer that is gone without a word. After Idle without a
// sign of life it has an RDMA WRITE of no bytes posted, whose acknowledgement is a
// sign; Count times Interval later the connection is lost. The transport repeats the
// request by itself, so one is enough. The acknowledgement of anything else serves as well.
type KeepAlive struct {
	kept Kept
	last atomic.Int64 // sign of life

	mu      sync.Mutex
	cfg     net.KeepAliveConfig
	timer   *time.Timer
	running bool
	rnrs    uint64
}

// Touch notes a sign of life.
func (k *KeepAlive) Touch() { k.TouchAt(now()) }

// TouchAt is Touch of one who knows what Now says.
func (k *KeepAlive) TouchAt(now int64) { k.last.Store(now) }

// Init says whom to look after, before anything else.
func (k *KeepAlive) Init(kept Kept, cfg net.KeepAliveConfig) {
	k.kept = kept
	k.set(cfg)
}

// set takes a configuration as net.TCPConn does: 0 is the default, negative leaves the value as it is.
func (k *KeepAlive) set(cfg net.KeepAliveConfig) {
	pick := func(v, old, def time.Duration) time.Duration {
		switch {
		case v > 0:
			return v
		case v == 0 || old == 0:
			return def
		}
		return old
	}
	k.cfg = net.KeepAliveConfig{
		Enable:   cfg.Enable,
		Idle:     pick(cfg.Idle, k.cfg.Idle, keepIdle),
		Interval: pick(cfg.Interval, k.cfg.Interval, keepInterval),
		Count:    int(pick(time.Duration(cfg.Count), time.Duration(k.cfg.Count), keepCount)),
	}
}

// Set changes the configuration.
func (k *KeepAlive) Set(cfg net.KeepAliveConfig) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set(cfg)
	k.arm(k.cfg.Idle)
}

// Start begins with the connection.
func (k *KeepAlive) Start() {
	k.Touch()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = true
	k.arm(k.cfg.Idle)
}

// Stop waits for what the timer is about.
func (k *KeepAlive) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
	if k.timer != nil {
		k.timer.Stop()
	}
}

func (k *KeepAlive) arm(d time.Duration) {
	switch {
	case !k.running || !k.cfg.Enable:
	case k.timer == nil:
		k.timer = time.AfterFunc(d, k.fire)
	default:
		k.timer.Reset(d)
	}
}

// fire looks whether the peer still lives.
func (k *KeepAlive) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || !k.cfg.Enable {
		return
	}
	if r := k.kept.RNRs(); r != k.rnrs {
		k.rnrs = r
		k.Touch()
	}
	quiet := time.Duration(now() - k.last.Load())
	limit := k.cfg.Idle + time.Duration(k.cfg.Count)*k.cfg.Interval
	switch {
	case quiet < k.cfg.Idle:
		k.arm(k.cfg.Idle - quiet)
	case quiet >= limit:
		k.running = false
		go k.kept.Lost()
	default:
		k.kept.Probe()
		k.arm(min(k.cfg.Interval, limit-quiet))
	}
}
