package rc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Config says what a connection shall be able to do.
type Config struct {
	Handler        Handler
	SendWR, RecvWR int // queue depths
	Inline         int
	MinRNRTimer    uint8
	BusyPoll       time.Duration

	// Messages replaces immediates by messages of their own, as devices without immediates always do.
	Messages bool
}

// Conn is one end of a reliable connection.
type Conn struct {
	Poller
	dev *Device
	id  verbs.CMID
	qp  verbs.QP

	sendWR, recvWR int
	inline         int
	messages       *messages // nil: there are immediates
}

// New makes the queues of a connection on an identifier, which from then on is
// the connection's. On failure it stays the caller's.
func New(id verbs.CMID, cfg *Config) (*Conn, error) {
	dev, err := OpenDevice(id)
	if err != nil {
		return nil, err
	}
	c := &Conn{dev: dev, id: id, sendWR: cfg.SendWR, recvWR: cfg.RecvWR}
	each, inline := 1, cfg.Inline // places in the send queue for each request
	if cfg.Messages || dev.iwarp {
		if c.messages, err = newMessages(dev, c.recvWR); err != nil {
			_ = dev.Release() // the first error says more
			return nil, fmt.Errorf("rc: receive buffers: %w", err)
		}
		c.translate = c.messages.translate
		each, inline = 2, max(inline, messageLen)
	}
	if m := dev.maxQPWR; m > 0 {
		c.sendWR, c.recvWR = min(c.sendWR, m/each), min(c.recvWR, m)
	}
	if err = c.Open(dev.dev, each*c.sendWR+c.recvWR, cfg.Handler, cfg.BusyPoll); err != nil {
		_, _ = c.freeMessages(), dev.Release() // the first error says more
		return nil, fmt.Errorf("rc: completion queue: %w", err)
	}
	c.qp, err = id.CreateQP(dev.pd, &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: c.cq, RecvCQ: c.cq,
		MaxSendWR: each * c.sendWR, MaxRecvWR: c.recvWR, MaxSendSGE: 1, MaxRecvSGE: 1,
		MaxInline: inline, MinRNRTimer: cfg.MinRNRTimer,
	})
	var limits verbs.QPCap
	if err == nil {
		limits = c.qp.Cap()
		if each > 1 && limits.MaxInline < messageLen {
			_ = c.qp.Close() // nothing was posted
			err = fmt.Errorf("device %s sends at most %d bytes inline, without immediates %d are needed: %w",
				dev.Name(), limits.MaxInline, messageLen, errors.ErrUnsupported)
		}
	}
	if err != nil {
		_, _, _ = c.cq.Close(), c.freeMessages(), dev.Release()
		return nil, fmt.Errorf("rc: queue pair: %w", err)
	}
	c.sendWR, c.recvWR = min(c.sendWR, limits.MaxSendWR/each), min(c.recvWR, limits.MaxRecvWR)
	c.inline = limits.MaxInline
	id.SetHandler(c.Event)
	return c, nil
}

// Device is the device the connection runs on. It stays open until Release.
func (c *Conn) Device() *Device { return c.dev }

// ID is the connection's identifier.
func (c *Conn) ID() verbs.CMID { return c.id }

// QP is the queue pair. What is posted to it directly is the caller's to count.
func (c *Conn) QP() verbs.QP { return c.qp }

// Messages tells whether immediates are messages of their own. Completions of receives then say nothing of how many
// bytes the peer has written.
func (c *Conn) Messages() bool { return c.messages != nil }

// SetMessageOrder says which byte order such messages have, both ways: the peer's. It is little endian until then, and
// set before Start.
func (c *Conn) SetMessageOrder(o binary.ByteOrder) {
	if c.messages != nil {
		c.messages.order = o
	}
}

// freeMessages gives back what messages came in.
func (c *Conn) freeMessages() error {
	if c.messages == nil {
		return nil
	}
	return c.dev.PutRegistered(c.messages.mr, c.messages.block)
}

// SendWR, RecvWR and Inline tell the limits that the provider granted.
func (c *Conn) SendWR() int { return c.sendWR }
func (c *Conn) RecvWR() int { return c.recvWR }
func (c *Conn) Inline() int { return c.inline }

// Connect connects the active side. Completions and events wait for Start.
func (c *Conn) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	return c.id.Connect(ctx, p)
}

// Accept answers the request of the passive side.
func (c *Conn) Accept(p *verbs.ConnParam) error { return c.id.Accept(p) }

// receives are work requests without buffers, which only immediates consume.
var receives [64]verbs.RecvWR

// RecvBit is set in the ID of every receive that PostReceives posted.
const RecvBit = 1 << 63

func init() {
	for i := range receives {
		receives[i].ID = RecvBit
	}
}

// PostReceives posts n receives without buffers of the caller's, and returns how many were taken.
func (c *Conn) PostReceives(n int) (int, error) {
	if c.messages != nil {
		return c.messages.post(c.qp, n)
	}
	for done := 0; done < n; {
		k, err := c.qp.PostRecv(receives[:min(n-done, len(receives))])
		done += k
		if err != nil || k == 0 {
			return done, err
		}
	}
	return n, nil
}

// ToError stops all transfer; every outstanding request completes as flushed.
func (c *Conn) ToError() error { return c.qp.ToError() }

// Abort disconnects so that the peer sees a failure, where the provider can.
func (c *Conn) Abort() {
	_ = c.qp.ToError() // it may be there already
	if a, ok := c.id.(verbs.Aborter); ok {
		_ = a.Abort() // an error means that there is nothing to disconnect
	}
}

// Close disconnects if need be, and destroys the queue pair, the completion queue
// and the identifier. Once it returns the handler does not run and no memory is touched
// any more. It must not be called from a handler, nor twice.
func (c *Conn) Close() error {
	// An error of Disconnect means that there is nothing to disconnect.
	_, _ = c.id.Disconnect(), c.qp.ToError()
	c.Stop()
	err := c.qp.Close()
	if e := c.cq.Close(); err == nil {
		err = e
	}
	if e := c.id.Close(); err == nil {
		err = e
	}
	if e := c.freeMessages(); err == nil {
		err = e
	}
	return err
}

// Release gives the device up, after the memory that came from it.
func (c *Conn) Release() error { return c.dev.Release() }
