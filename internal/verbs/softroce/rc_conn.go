package softroce

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const psnMask = wire.PSNMask

// rc is the reliable connection service of a queue pair (IBTA 9.7): requester and
// responder, under the queue pair's lock.
type rc struct {
	q       *qp
	path    *netio.Path
	cc      *congestion // nil before connect
	destQPN uint32
	mtu     uint32

	handed handed

	hold heldAck

	requester
	responder
}

func (r *rc) from(netip.AddrPort) *handed { return &r.handed }

func newRC(q *qp) *rc {
	r := &rc{q: q}
	r.fire = r.onTimer
	return r
}

func (r *rc) connect(a *rcAttr) {
	r.path, r.destQPN, r.mtu = a.path, a.destQPN, uint32(a.mtu)
	r.cc = r.q.dev.paths.join(a.path.Remote, a.destQPN, int64(r.mtu)+packetOverhead)
	// Until there is a measurement of its own: that of others on the same path.
	r.srtt = r.cc.roundTrip()
	r.rttvar = r.srtt
	r.una, r.paid, r.nxt, r.max, r.end = a.sqPSN, a.sqPSN, a.sqPSN, a.sqPSN, a.sqPSN
	r.rnrRetry, r.rnrLeft = a.rnrRetry, a.rnrRetry
	if a.ackTimeout != 0 {
		r.ackTimeout = 4096 << a.ackTimeout
		r.giveUp = r.ackTimeout * int64(a.retryCount+1)
	}
	r.exp = a.rqPSN
	r.seen = a.sqPSN
	r.asked = newAskedQueue(a.maxRDAtomic)
	if a.maxDestRDAtomic > 0 {
		r.resources = make([]resource, a.maxDestRDAtomic)
	}
}

// checkPacket decodes a packet and checks what every one must satisfy (IBTA 9.6).
func (r *rc) checkPacket(h *wire.Packet, p *netio.Packet) bool {
	stats := &r.q.dev.stats
	switch {
	case h.Decode(p.Data) != nil:
		stats.malformed.Add(1)
	case h.Opcode.Service() != wire.ServiceRC:
		stats.wrongType.Add(1)
	case !goodPKey(h.PKey):
		stats.wrongPKey.Add(1)
	case p.Remote.Addr() != r.path.Remote || p.Local != r.path.Local:
		stats.wrongAddr.Add(1)
	default:
		return true
	}
	return false
}

// receive hands a packet on to requester or responder.
func (r *rc) receive(w *work, p *netio.Packet) {
	h := &w.in
	if !r.checkPacket(h, p) {
		return
	}
	if !r.q.metPeer {
		r.q.metPeer = true
		w.met = append(w.met, r.q)
	}
	if h.Opcode.IsRequest() {
		r.request(w, h)
	} else {
		r.response(w, h)
	}
}

// receiveDead repeats a refusal whose first copy was lost, when the refused request
// comes again: silence would let the peer wait for its retries to run out, and
// not learn why. So it is with the results of READs and atomics before it.
func (r *rc) receiveDead(w *work, p *netio.Packet) {
	h := &w.in
	if r.accepted {
		if r.checkPacket(h, p) && h.Opcode.IsRequest() && wire.PSNDiff(h.PSN, r.exp) < 0 {
			r.duplicate(w, h)
		}
	} else if r.syndrome == 0 {
		r.q.dev.stats.wrongState.Add(1)
	} else if r.checkPacket(h, p) && h.Opcode.IsRequest() && wire.PSNDiff(h.PSN, r.refusedPSN) <= 0 {
		if h.PSN != r.refusedPSN && !h.Opcode.IsSend() && !h.Opcode.IsWrite() {
			r.again(w, h)
		}
		r.answerWith(dueRefusal)
	}
}

// received ends a run of packets: one answer for all of them, then what the
// responses among them allow to send.
func (r *rc) received(w *work) {
	r.settle(w)
	r.reply(w)
	if r.kicked && r.q.state == stateRTS {
		r.transmit(w)
	}
	r.kicked = false
	r.failLong(w)
}

// stop ends all activity for good. An answer that is due is still given.
func (r *rc) stop(w *work) {
	r.settle(w)
	r.giveHeld(w, false)
	r.timer.stop()
	if r.cc == nil {
		return
	}
	if r.q.state == stateClosed || r.due != dueRefusal && !r.accepted {
		r.dropReplies()
	}
	r.cc.quit(w, r)
	r.cc.give(w, r.inflight)
	r.inflight = 0
}

// close follows stop, once.
func (r *rc) close() {
	r.flushing.Wait()
	if r.cc != nil {
		r.q.dev.paths.leave(r.cc)
		r.path.SetFlow(0) // another one may have its port
	}
}

// header begins the headers of an outgoing packet.
func (r *rc) header(w *work, op wire.Opcode, psn uint32) *wire.Packet {
	h := &w.out
	h.BTH = wire.BTH{Opcode: op, PKey: wire.DefaultPKey, DestQP: r.destQPN, PSN: psn}
	return h
}

// add puts a packet with these headers into the batch.
func (r *rc) add(w *work, h *wire.Packet) {
	if w.tx.Full() {
		w.flush()
	}
	h.PutHeaders(w.tx.Add(r.path, h.HeaderLen()))
}

func nanos(d time.Duration) int64 { return int64(d) }

var _ transport = (*rc)(nil)

// check refuses what this device cannot do on a reliable connection.
func (r *rc) check(wr *verbs.SendWR) error {
	switch wr.Op {
	case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWrite, verbs.OpWriteWithImm:
		return nil
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpFlush, verbs.OpAtomicWrite:
		switch {
		case len(r.asked.ring) == 0:
			return fmt.Errorf("softroce: %v requests: the connection was made with an initiator depth of 0: %w", wr.Op, syscall.EINVAL)
		case wr.Op == verbs.OpFlush:
			return verbs.CheckFlush("softroce", wr, maxMsgSize)
		case wr.Op == verbs.OpAtomicWrite:
			return checkAtomicWrite(wr)
		case wr.Inline != nil:
			return fmt.Errorf("softroce: inline bytes of %v requests, which receive some: %w", wr.Op, syscall.EINVAL)
		}
		return nil
	}
	return unsupported(wr.Op.String() + " requests")
}
