//go:build linux

package shm

// register gives a connection of the active side its number.
func (l *link) register(c *cmid) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	for {
		l.lastConn++
		if _, ok := l.conns[l.lastConn]; !ok && l.lastConn != 0 {
			break
		}
	}
	c.conn = l.lastConn
	l.conns[c.conn] = c
	return nil
}

// accept takes a connection with the number that the peer gave it.
func (l *link) accept(c *cmid) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case l.conns[c.conn] != nil:
		return errMessage
	}
	l.conns[c.conn] = c
	return nil
}

func (l *link) unregister(c *cmid) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[c.conn] == c {
		delete(l.conns, c.conn)
	}
}

func (l *link) connection(num uint32) *cmid {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[num]
}

// dyingRing names a ring that is no more.
type dyingRing struct {
	shared bool
	id     uint32 // of the connection or the lane
}

// dying is what is left of it.
type dying struct {
	block block
	lane  *lane // of a shared one
}

// forgotten is told that the peer does not use it any more.
func (d dying) forgotten(dev *device) {
	if d.lane != nil {
		d.lane.finish()
	}
	dev.rings.put(d.block)
}

// bye tells that a queue pair or shared receive queue is no more. Its ring is used again when the peer has
// forgotten it, and, since messages keep their order, what it was told of before.
func (l *link) bye(r dyingRing, d dying) {
	l.mu.Lock()
	dead := l.err != nil
	if !dead {
		l.dying[r] = d
	}
	l.mu.Unlock()
	if dead {
		d.forgotten(l.dev)
		return
	}
	h := header{Kind: msgBye, ID: r.id}
	if r.shared {
		h.Flag = 1
	}
	l.tell(h)
}

// forgotten is the answer.
func (l *link) forgotten(r dyingRing) {
	l.mu.Lock()
	d, ok := l.dying[r]
	delete(l.dying, r)
	l.mu.Unlock()
	if ok {
		d.forgotten(l.dev)
	}
}
