package ring

import (
	"net"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// kept is a connection as what is kept alive.
type kept Conn

// RNRs implements [rc.Kept].
func (k *kept) RNRs() uint64 { return k.rc.QP().Stats().RNRs }

// Lost implements [rc.Kept].
func (k *kept) Lost() { (*Conn)(k).fail(syscall.ETIMEDOUT) }

// Probe implements [rc.Kept].
func (k *kept) Probe() {
	c := (*Conn)(k)
	c.shrink()
	c.probe()
}

// keepAliveConfig is what the configuration says.
func (cfg *Config) keepAliveConfig() net.KeepAliveConfig {
	ka := cfg.KeepAlive
	if ka == (net.KeepAliveConfig{}) {
		ka.Enable = true
	}
	ka.Enable = ka.Enable && !cfg.NoKeepAlive
	return ka
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
	if t.probing || !t.open || t.err != nil || t.peerGone || t.ctrl >= ctrlSlots || t.q.Free() == 0 {
		return
	}
	t.probing = true
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
	c.keep.Set(cfg)
	return nil
}
