package rpma

import (
	"syscall"
)

// probes is how many requests a keep-alive may have on its way, beside those of the user's.
const probes = 1

// keepCount is how often a peer is asked for a sign of life in vain.
const keepCount = 9

// kept is a connection as what is kept alive.
type kept Conn

// RNRs implements [rc.Kept].
func (k *kept) RNRs() uint64 { return k.qp.Stats().RNRs }

// Lost implements [rc.Kept].
func (k *kept) Lost() {
	(*Conn)(k).finish(EventLost, opError("connection", syscall.ETIMEDOUT))
}

// Probe implements [rc.Kept].
func (k *kept) Probe() {
	c := (*Conn)(k)
	if c.ended.Load() {
		go c.keep.Stop() // which waits for this very call
		return
	}
	c.probe()
	c.poller.Attend() // now something is pending
}
