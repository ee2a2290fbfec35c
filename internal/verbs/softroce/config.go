package softroce

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace"
)

// Config are the parameters of a softroce instance. The zero value is the real
// thing; tests put devices on a simulated network and clock.
type Config struct {
	Name  string                                    // of the device; empty: "softroce0"
	Open  func(h netio.Handler) (netio.Conn, error) // nil: the host's UDP sockets
	Clock Clock                                     // nil: package time
	Rand  io.Reader                                 // of keys, numbers and addresses; nil: crypto/rand

	// FirstPSN chooses the PSN of a queue pair's first request. nil: random.
	FirstPSN func() uint32

	// Share joins the processes that share the network. received takes what they
	// hand over, short the errors of what could not be for want of descriptors.
	// nil: package share, or nobody if Open is set.
	Share func(received func(p *netio.Packet), short func(error)) (Sharer, error)

	// Trace records the packets. nil: what the environment asks for, or nobody if Open is set.
	Trace *trace.Recorder

	cm func(*ibcm.Config) // changes the communication manager's times
}

// Clock tells the time and runs functions later.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what [time.AfterFunc] returns.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

type realClock struct{}

func (realClock) Now() time.Time                            { return time.Now() }
func (realClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

func (c *Config) name() string {
	if c.Name != "" {
		return c.Name
	}
	return "softroce0"
}

func (c *Config) clock() Clock {
	if c.Clock != nil {
		return c.Clock
	}
	return realClock{}
}

func (c *Config) open(h netio.Handler) (netio.Conn, error) {
	if c.Open != nil {
		return c.Open(h)
	}
	// Many source ports are many ways past a process of the peer's host that is stopped.
	cfg := netio.Config{Handler: h, SourcePorts: 16}
	if t := c.trace(); t != nil {
		cfg.Trace = t
	}
	conn, err := netio.Listen(cfg)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// trace returns who records the packets, or nil.
func (c *Config) trace() *trace.Recorder {
	if c.Trace == nil && c.Open == nil {
		return trace.FromEnv()
	}
	return c.Trace
}

func (c *Config) share(received func(p *netio.Packet), short func(error)) (Sharer, error) {
	switch {
	case c.Share != nil:
		return c.Share(received, short)
	case c.Open != nil:
		return newLocalShare(c), nil
	}
	s, err := share.Join(share.Config{Received: received, Short: short})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Config) rand() io.Reader {
	if c.Rand != nil {
		return c.Rand
	}
	return rand.Reader
}

// random64 returns 64 random bits. A source of randomness that fails leaves no
// safe way to go on.
func (c *Config) random64() uint64 {
	var b [8]byte
	if _, err := io.ReadFull(c.rand(), b[:]); err != nil {
		panic("softroce: no randomness: " + err.Error())
	}
	return binary.LittleEndian.Uint64(b[:])
}
