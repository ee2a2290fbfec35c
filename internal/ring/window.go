package ring

import "fmt"

// sglEntries is the size of the target SGL of this side.
const sglEntries = 2

// window is what the peer allows this side to send: descriptors of its receive
// memory, and a limit of messages.
type window struct {
	desc    [sglEntries]descriptor // what is left of them, oldest first
	n       int
	limit   uint16 // messages, absolute
	sent    uint16
	reserve uint16 // credits kept for messages that need none, so that they find a receive

	entry int // of the target SGL that the peer writes next
}

// init takes what the peer's private data says.
func (w *window) init(credits uint16, buf descriptor) {
	*w = window{limit: credits, reserve: min(4, credits/4), n: 1, entry: 1}
	w.desc[0] = buf
}

// publish takes a descriptor that the peer has written into the next entry.
func (w *window) publish(d descriptor) error {
	if !d.valid() {
		return fmt.Errorf("%w: descriptor of %d bytes at %#x", ErrProtocol, d.length, d.addr)
	}
	if w.n == len(w.desc) {
		return fmt.Errorf("%w: descriptor overwritten", ErrProtocol)
	}
	w.desc[w.n] = d
	w.n++
	w.entry = (w.entry + 1) % sglEntries
	return nil
}

// setLimit takes the limit of an update, of which 16 bits count.
func (w *window) setLimit(v uint32) { w.limit = uint16(v) }

// room returns the bytes that the next message may have.
func (w *window) room() uint32 {
	if w.n == 0 || w.limit-w.sent <= w.reserve {
		return 0
	}
	return w.desc[0].length
}

// take uses n bytes of room for a message. It is called before the message is
// posted, since the peer may answer it at once.
func (w *window) take(n uint32) (addr uint64, key uint32) {
	d := &w.desc[0]
	addr, key = d.addr, d.key
	d.addr += uint64(n)
	d.length -= n
	w.sent++
	if d.length == 0 {
		w.n--
		copy(w.desc[:], w.desc[1:])
		w.desc[w.n] = descriptor{}
	}
	return addr, key
}
