package rdmanet

import (
	"net"
	"time"

	"github.com/go-rdma/rdma/internal/ring"
)

// Keep-alive as package net has it by default.
const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 9
)

// keepAlive joins the two ways of saying when a peer is asked whether it lives,
// as net.Dialer does, and fills in the defaults.
func keepAlive(period time.Duration, cfg net.KeepAliveConfig) net.KeepAliveConfig {
	if !cfg.Enable && period >= 0 {
		// Period is both, the time before the first question and between two.
		cfg = net.KeepAliveConfig{Enable: true, Idle: period, Interval: period}
	}
	if !cfg.Enable {
		return net.KeepAliveConfig{}
	}
	if cfg.Idle <= 0 {
		cfg.Idle = keepAliveIdle
	}
	if cfg.Interval <= 0 {
		cfg.Interval = keepAliveInterval
	}
	if cfg.Count <= 0 {
		cfg.Count = keepAliveCount
	}
	return cfg
}

// SetKeepAlive turns asking a silent peer whether it lives on or off. It is on by
// default: after 15 s, then every 15 s, and the connection fails with ETIMEDOUT after the 9th.
func (c *Conn) SetKeepAlive(on bool) error {
	return c.setKeepAlive(func(cfg net.KeepAliveConfig) net.KeepAliveConfig {
		cfg.Enable = on
		return cfg
	})
}

// SetKeepAlivePeriod sets the time before the first question and between two.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.setKeepAlive(func(cfg net.KeepAliveConfig) net.KeepAliveConfig {
		cfg.Idle, cfg.Interval = d, d
		return cfg
	})
}

// SetKeepAliveConfig sets all of it. Fields that are 0 take the defaults,
// negative ones stay as they are.
func (c *Conn) SetKeepAliveConfig(cfg net.KeepAliveConfig) error {
	return c.setKeepAlive(func(old net.KeepAliveConfig) net.KeepAliveConfig {
		if cfg.Idle < 0 {
			cfg.Idle = old.Idle
		}
		if cfg.Interval < 0 {
			cfg.Interval = old.Interval
		}
		if cfg.Count < 0 {
			cfg.Count = old.Count
		}
		return cfg
	})
}

func (c *Conn) setKeepAlive(change func(net.KeepAliveConfig) net.KeepAliveConfig) error {
	return c.set(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		cfg := change(c.keepAlive)
		c.keepAlive = cfg
		if cfg.Enable {
			cfg = keepAlive(0, cfg)
		}
		return c.ring.SetKeepAliveConfig(cfg)
	})
}

func ringConfig(readBuffer, writeBuffer int, busyPoll, period time.Duration, cfg net.KeepAliveConfig) *ring.Config {
	cfg = keepAlive(period, cfg)
	return &ring.Config{
		ReadBuffer: readBuffer, WriteBuffer: writeBuffer, BusyPoll: busyPoll,
		KeepAlive: cfg, NoKeepAlive: !cfg.Enable,
	}
}
