package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// work is one goroutine's turn at a device: the packets it wants to send, the
// regions these refer to, and what has to wait until no lock is held. Turns are
// pooled: one costs no allocation.
type work struct {
	dev  *device
	tx   *netio.TxBatch
	held []*mr
	in   wire.Packet // the packet being received
	out  wire.Packet // the headers being built
	grh  [verbs.GRHLen]byte

	// Copies of what READ responses in the batch carry.
	stage  []byte
	staged int

	time int64

	overrun []*cq // their queue pairs fail
	resume  []*rc // may send again
	notify  []*cq
	met     []*qp // onCommEst is due
}

func (d *device) begin() *work {
	w, _ := d.works.Get().(*work)
	if w == nil {
		w = &work{dev: d, tx: netio.NewTxBatch(), held: make([]*mr, 0, 8)}
	}
	return w
}

// now returns the time on the device's clock, read once in a turn.
func (w *work) now() int64 {
	if w.time == 0 {
		w.time = w.dev.now()
	}
	return w.time
}

// hold keeps the region from closing until the batch is sent.
func (w *work) hold(m *mr) bool {
	for i := len(w.held) - 1; i >= max(0, len(w.held)-4); i-- {
		if w.held[i] == m {
			return true
		}
	}
	if !m.hold() {
		return false
	}
	w.held = append(w.held, m)
	return true
}

// flush sends the batch. Payload is read for the last time, so regions are let go.
func (w *work) flush() {
	if w.tx.Len() > 0 {
		if err := w.dev.conn.Send(w.tx); err != nil {
			// As good as a loss: the peer's silence decides, and an interface
			// that comes back heals it.
			w.dev.stats.sendErrors.Add(1)
		}
		w.tx.Reset()
	}
	for i, m := range w.held {
		m.release()
		w.held[i] = nil
	}
	w.held = w.held[:0]
	w.staged = 0
}

// stageSize bounds the payload of the READ responses in a batch: two of the largest sends that the
// kernel cuts into packets.
const stageSize = 128 << 10

// room sends the batch if it has no room for one more packet with n bytes of staged payload.
func (w *work) room(n int) {
	if w.stage == nil {
		w.stage = make([]byte, stageSize)
	}
	if w.tx.Full() || w.staged+n > len(w.stage) {
		w.flush()
	}
}

// copied returns a copy of p that lives until the batch is sent. There is room.
func (w *work) copied(p []byte) []byte {
	n := copy(w.stage[w.staged:], p)
	p = w.stage[w.staged : w.staged+n]
	w.staged += n
	return p
}

// end finishes the turn. No lock is held. handlersHere allows handlers of the
// consumer to run on this goroutine, which must be the provider's own.
func (w *work) end(handlersHere bool) {
	d := w.dev
	for len(w.overrun) > 0 || len(w.resume) > 0 {
		w.failOverrun()
		w.resumeWaiting()
	}
	// Who waits is woken first; acknowledgements have time.
	if len(w.notify) > 0 || len(w.met) > 0 {
		d.seat.tell(w.notify)
		if handlersHere && d.polling.Load() == 0 {
			for _, q := range w.met {
				q.met()
			}
			for _, c := range w.notify {
				c.notified()
			}
		} else {
			d.notifier.add(w.met, w.notify)
		}
		clear(w.met)
		clear(w.notify)
		w.met, w.notify = w.met[:0], w.notify[:0]
	}
	w.flush()
	w.time = 0
	d.works.Put(w)
}

// failOverrun moves the queue pairs of overrun completion queues to the error state.
func (w *work) failOverrun() {
	for i := 0; i < len(w.overrun); i++ {
		c := w.overrun[i]
		w.dev.qps.each(func(q *qp) {
			if q.sendCQ == c || q.recvCQ == c {
				q.mu.Lock()
				q.fail(w, 0)
				q.mu.Unlock()
			}
		})
	}
	clear(w.overrun)
	w.overrun = w.overrun[:0]
}

// resumeWaiting lets queue pairs send that waited for room on the path to their peer.
func (w *work) resumeWaiting() {
	for i := 0; i < len(w.resume); i++ {
		r := w.resume[i]
		w.resume[i] = nil
		r.q.mu.Lock()
		r.transmit(w)
		r.cc.refund(w, r)
		r.q.mu.Unlock()
	}
	w.resume = w.resume[:0]
}
