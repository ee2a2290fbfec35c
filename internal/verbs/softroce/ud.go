package softroce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// ud is the unreliable datagram service of a queue pair (IBTA 9.8.3), under the queue pair's lock. A request is done when the network
// has its packet.
type ud struct {
	q     *qp
	qkey  uint32
	psn   uint32       // of the next datagram; receivers do not look at it
	block bool         // no datagrams to a group from this queue pair itself
	own   []netip.Addr // where such datagrams came from

	handed [16]handed // of senders, which may be many
}

// from implements [transport]. Senders that fall together delay each other's settling.
func (u *ud) from(a netip.AddrPort) *handed {
	b := a.Addr().As16()
	return &u.handed[(binary.BigEndian.Uint32(b[12:])*31+uint32(a.Port()))*0x9e3779b1>>28]
}

// udAttr is what an identifier gives its queue pair.
type udAttr struct {
	qkey uint32
	mtu  verbs.MTU
}

// newUDQP makes a queue pair that is ready to send and to receive.
func (d *device) newUDQP(p *pd, attr *verbs.QPInitAttr, a udAttr) (*qp, error) {
	if attr.Type != verbs.UD {
		return nil, fmt.Errorf("softroce: a queue pair of type %v for datagrams: %w", attr.Type, syscall.EINVAL)
	}
	return d.makeQP(p, attr, func(q *qp) {
		q.service = &ud{q: q, qkey: a.qkey, block: attr.BlockMulticastLoopback}
		q.caps.PathMTU = a.mtu
		q.state = stateRTS
	})
}

var _ transport = (*ud)(nil)

const privilegedQKey = 1 << 31

// check implements [transport].
func (u *ud) check(wr *verbs.SendWR) error {
	if wr.Op != verbs.OpSend && wr.Op != verbs.OpSendWithImm {
		if wr.Op == verbs.OpSendWithInv || wr.Op == verbs.OpFlush || wr.Op == verbs.OpAtomicWrite {
			return unsupported(wr.Op.String() + " requests")
		}
		return fmt.Errorf("softroce: %v requests: datagrams have only SEND: %w", wr.Op, syscall.EINVAL)
	}
	a, ok := wr.AH.(*ah)
	if !ok || a == nil || a.pd != u.q.pd {
		return fmt.Errorf("softroce: no address handle of the queue pair's domain: %w", syscall.EINVAL)
	}
	w := a.way.Load()
	group := wr.RemoteQPN == wire.QPNMulticast
	switch {
	case a.closed.Load():
		return fmt.Errorf("softroce: address handle is closed: %w", syscall.EINVAL)
	case wr.RemoteQPN == 0 || wr.RemoteQPN > psnMask || group != w.group():
		return fmt.Errorf("softroce: no queue pair %#x at %v (that of a group is %#x): %w",
			wr.RemoteQPN, w.attr.Remote, wire.QPNMulticast, syscall.EINVAL)
	}
	limit := uint64(min(u.q.caps.PathMTU, w.mtu))
	n := uint64(len(wr.Inline))
	if wr.Inline == nil {
		for i := range wr.SGL {
			n += uint64(wr.SGL[i].Length)
		}
	}
	if n > limit {
		return fmt.Errorf("softroce: datagram of %d bytes, the limit to %v is %d: %w", n, w.attr.Remote, limit, syscall.EMSGSIZE)
	}
	return nil
}

// queued implements [transport].
func (u *ud) queued(e *sendWQE, wr *verbs.SendWR) {
	e.ah = wr.AH.(*ah)
	qkey := wr.RemoteQKey
	if qkey&privilegedQKey != 0 {
		qkey = u.qkey // IBTA 10.2.5
	}
	e.raddr, e.rkey = uint64(wr.RemoteQPN), qkey
}

// transmit implements [transport]: what was posted together goes out together.
func (u *ud) transmit(w *work) {
	q := u.q
	for pos := q.sq.head; pos != q.sq.tail; {
		if w.tx.Full() {
			u.sent(w, pos)
		}
		if e := q.sq.at(pos); e.status == verbs.Success && u.send(w, e) {
			pos++
			continue
		}
		u.sent(w, pos)
		q.fail(w, verbs.LocProtErr)
		return
	}
	u.sent(w, q.sq.tail)
}

// send puts a request's packet into the batch, unless a region is closed.
func (u *ud) send(w *work, e *sendWQE) bool {
	for i := range e.sgl {
		if !w.hold(e.sgl[i].m) {
			return false
		}
	}
	way := e.ah.way.Load()
	qpn := uint32(e.raddr)
	if u.block && way.group() && !slices.Contains(u.own, way.attr.Local) {
		u.own = append(u.own, way.attr.Local)
	}
	h := &w.out
	h.BTH = wire.BTH{
		Opcode: wire.UDSendOnly, Pad: wire.PadFor(int(e.length)), PKey: wire.DefaultPKey, DestQP: qpn, PSN: u.psn,
		Solicited: e.flags&verbs.Solicited != 0,
	}
	if e.op == verbs.OpSendWithImm {
		h.Opcode, h.Imm = wire.UDSendOnlyImm, e.imm
	}
	h.DETH = wire.DETH{QKey: e.rkey, SrcQP: u.q.num}
	u.psn = wire.PSNAdd(u.psn, 1)
	h.PutHeaders(w.tx.Add(way.path(u.q.dev.cfg, qpn), h.HeaderLen()))
	gather(w, e, 0, uint64(e.length))
	return true
}

// sent sends the batch and completes the requests up to pos.
func (u *ud) sent(w *work, pos uint32) {
	w.flush()
	q := u.q
	for ; q.sq.head != pos; q.sq.head++ {
		e := q.sq.at(q.sq.head)
		if way := e.ah.way.Load(); way.path(q.dev.cfg, uint32(e.raddr)).TooLong() {
			e.ah.tooLong(q.dev, way)
		}
		e.ah = nil
		if e.flags&verbs.Signaled != 0 {
			q.complete(w, q.sendCQ, e.id, verbs.Success, verbs.WCSend)
		}
	}
	if q.sq.head == q.sq.tail {
		q.sq.emptied()
	}
}

// receive implements [transport]. What is not right is dropped in silence (IBTA 9.8.3.2).
func (u *ud) receive(w *work, p *netio.Packet) {
	h, stats := &w.in, &u.q.dev.stats
	switch {
	case h.Decode(p.Data) != nil || len(h.Payload) > maxDatagram:
		stats.malformed.Add(1)
	case h.Opcode.Service() != wire.ServiceUD:
		stats.wrongType.Add(1)
	case !goodPKey(h.PKey):
		stats.wrongPKey.Add(1)
	case h.QKey != u.qkey:
		stats.wrongQKey.Add(1)
	case (h.DestQP == wire.QPNMulticast) != p.Local.IsMulticast():
		stats.wrongAddr.Add(1)
	case u.block && h.DestQP == wire.QPNMulticast && h.SrcQP == u.q.num && slices.Contains(u.own, p.Remote.Addr()):
		// asked for
	default:
		u.take(w, p, h)
	}
}

const maxDatagram = 4096 // the largest MTU

// take puts a datagram into the oldest receive. One that is too small does not end the queue pair, as it would a
// connection: a sender that nobody knows must not be able to do that.
func (u *ud) take(w *work, p *netio.Packet, h *wire.Packet) {
	q := u.q
	switch u.ready(verbs.GRHLen + uint64(len(h.Payload))) {
	case tookNone:
		u.dropped(&q.dev.stats.noReceive)
		return
	case tookShort:
		u.dropped(&q.dev.stats.shortReceive)
		return
	case tookOne:
	}
	e := q.rq.at(q.rq.head)
	status := verbs.LocProtErr
	if !e.bad {
		flags := putGRH(&w.grh, p)
		if status = scatter(e.sgl, 0, w.grh[:]); status == verbs.Success {
			status = scatter(e.sgl, verbs.GRHLen, h.Payload)
		}
		if status == verbs.Success {
			wc := verbs.WC{
				ID: e.id, Op: verbs.WCRecv, Flags: flags, ByteLen: verbs.GRHLen + uint32(len(h.Payload)), QPN: q.num, SrcQPN: h.SrcQP,
			}
			if h.Opcode.HasImm() {
				wc.Imm, wc.Flags = h.Imm, wc.Flags|verbs.WCWithImm
			}
			q.rq.head++
			q.recvCQ.push(w, &wc)
			if q.rq.len() == 0 {
				q.rq.emptied()
			}
			return
		}
	}
	q.complete(w, q.recvCQ, e.id, status, verbs.WCRecv)
	q.rq.head++
	q.fail(w, verbs.Success)
}

// ready tells whether the oldest receive takes a datagram.
func (u *ud) ready(need uint64) taken {
	q := u.q
	if q.srq != nil {
		return q.srq.take(q, need)
	}
	if q.rq.len() == 0 {
		return tookNone
	}
	if e := q.rq.at(q.rq.head); !e.bad && e.room() < need {
		return tookShort
	}
	return tookOne
}

// receiveDead implements [transport].
func (u *ud) receiveDead(*work, *netio.Packet) { u.q.dev.stats.wrongState.Add(1) }

// received implements [transport].
func (u *ud) received(*work) {}

// stop implements [transport].
func (u *ud) stop(*work) {}

// close implements [transport].
func (u *ud) close() { u.q.dev.groups.leaveAll(u.q) }

// dropped counts a datagram that was right and met no receive that takes it.
func (u *ud) dropped(why *atomic.Uint64) {
	u.q.stats.Dropped++
	why.Add(1)
}
