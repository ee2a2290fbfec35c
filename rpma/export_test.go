package rpma

// SetMaxOp makes operations of connections to come shorter.
func SetMaxOp(p *Peer, n int) { p.maxMsg = uint64(n) }
