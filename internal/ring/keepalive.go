package ring

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Package net's defaults.
const (
	keepIdle     = 15 * time.Second
	keepInterval = 15 * time.Second
	keepCount    = 9
)

// keepAlive notices a peer that is gone without a word. After Idle without a
// sign of life it posts an RDMA WRITE of no bytes, whose acknowledgement is a
// sign; Count times Interval later the connection fails. The transport repeats the
// request by itself, so one is enough. The acknowledgement of anything else serves as well.
type keepAlive struct {
	c    *Conn
	last atomic.Int64 // sign of life

	mu      sync.Mutex // taken before tx.mu
	cfg     net.KeepAliveConfig
	timer   *time.Timer
	running bool
	rnrs    uint64

	probing bool // guarded by tx.mu
}

var epoch = time.Now()

func (k *keepAlive) now() int64 { return int64(time.Since(epoch)) }

// touch notes a sign of life.
func (k *keepAlive) touch() { k.last.Store(k.now()) }

func (k *keepAlive) init(c *Conn, cfg *Config) {
	k.c = c
	ka := cfg.KeepAlive
	if ka == (net.KeepAliveConfig{}) {
		ka.Enable = true
	}
	ka.Enable = ka.Enable && !cfg.NoKeepAlive
	k.set(ka)
}

// set takes a configuration as net.TCPConn does: 0 is the default, negative leaves the value as it is.
func (k *keepAlive) set(cfg net.KeepAliveConfig) {
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

// start begins with the connection.
func (k *keepAlive) start() {
	k.touch()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = true
	k.arm(k.cfg.Idle)
}

func (k *keepAlive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
	if k.timer != nil {
		k.timer.Stop()
	}
}

func (k *keepAlive) arm(d time.Duration) {
	switch {
	case !k.running || !k.cfg.Enable:
	case k.timer == nil:
		k.timer = time.AfterFunc(d, k.fire)
	default:
		k.timer.Reset(d)
	}
}

// fire looks whether the peer still lives.
func (k *keepAlive) fire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running || !k.cfg.Enable {
		return
	}
	// A peer that has no receive posted says so: it lives.
	if r := k.c.rc.QP().Stats().RNRs; r != k.rnrs {
		k.rnrs = r
		k.touch()
	}
	quiet := time.Duration(k.now() - k.last.Load())
	limit := k.cfg.Idle + time.Duration(k.cfg.Count)*k.cfg.Interval
	switch {
	case quiet < k.cfg.Idle:
		k.arm(k.cfg.Idle - quiet)
	case quiet >= limit:
		k.running = false
		go k.c.fail(syscall.ETIMEDOUT)
	default:
		k.c.shrink()
		k.c.probe()
		k.arm(min(k.cfg.Interval, limit-quiet))
	}
}

// shrink gives back what an idle connection can do without. What is published
// stays the peer's to write.
func (c *Conn) shrink() {
	c.rx.mu.Lock()
	free := c.rx.shrink()
	c.rx.mu.Unlock()
	c.putSegments(free)
}

// probe sends a request of no bytes, unless one is on its way.
func (c *Conn) probe() {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.keep.probing || !t.open || t.err != nil || t.peerGone || t.ctrl >= ctrlSlots || t.q.Free() == 0 {
		return
	}
	c.keep.probing = true
	t.sendCtrl(rc.Send{Op: verbs.OpWrite}, sent{kind: sentProbe}, true)
	if err := t.q.Flush(); err != nil {
		c.failLocked(err)
	}
}

// SetKeepAliveConfig changes keep-alive.
func (c *Conn) SetKeepAliveConfig(cfg net.KeepAliveConfig) error {
	if err := c.open(); err != nil {
		return err
	}
	k := &c.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set(cfg)
	k.arm(k.cfg.Idle)
	return nil
}
