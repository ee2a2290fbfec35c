package rpma

import (
	"time"
)

// librpma's defaults.
const (
	defaultResolve = time.Second
	defaultQueue   = 10
	defaultSRQ     = 20
	defaultKeep    = 15 * time.Second
)

// NativeOps says whether flushes and atomic writes are operations of the devices.
type NativeOps int

// Choices of NativeOps.
const (
	// NativeAuto uses FLUSH and ATOMIC WRITE where both ends are known to have them.
	NativeAuto NativeOps = iota
	// NativeNever emulates them, which works with every peer.
	NativeNever
	// NativeAlways uses them if this device has them, and fails else. A peer whose device has not ends the connection at the first.
	NativeAlways
)

// ConnConfig says what a connection shall be able to do. Zero fields are librpma's defaults, negative is none.
type ConnConfig struct {
	// ResolveTimeout bounds the resolution of addresses and routes, not that of names, nor the connecting: the context
	// bounds everything. 0: a second.
	ResolveTimeout time.Duration

	// CQSize is how many completions the completion queue holds at least. It is made large enough for all
	// that the other queues may have.
	CQSize  int
	RCQSize int // more than 0: receives complete in a queue of their own
	SQSize  int // operations posted and not completed or, if they are to be polled, not polled; 0: 10
	RQSize  int // receives likewise; 0: 10

	SharedChannel bool // Conn.Wait waits for both queues; CQ.Wait does not
	SRQ           *SRQ // receives are taken from there

	// KeepAlive is how long the peer may give no sign of life before it is asked for one, by a write of no bytes; after nine times
	// that without an answer, or earlier if the device gives up, the connection is lost. 0: 15 seconds; negative: never, as in C.
	KeepAlive time.Duration

	TrafficClass uint8 // DSCP<<2 of what is sent; 0: the device's default
	Native       NativeOps
}

// SRQConfig says what a shared receive queue shall be able to do. Zero fields are librpma's defaults.
type SRQConfig struct {
	RQSize  int // receives; 0: 20
	RCQSize int // completions at least; 0: 20; negative: no completion queue of its own
}

// size is a queue's size: 0 is the default, negative none.
func size(n, def int) int {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return def
	}
	return n
}
