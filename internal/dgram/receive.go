package dgram

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// receiver is the receiving half of an endpoint. A slot holds any datagram that the port may receive, GRH included: one that is
// too long for its receive ends the queue pair on some devices (rdma_rxe of Linux 6.1), which no sender must be able to do.
type receiver struct {
	cq    verbs.CQ
	one   verbs.ArmPoller // cq, where it spares calls; else nil
	armed atomic.Bool     // a Notify is to come

	room   int // of the receive queue
	posted int
	size   int // of a slot
	chunks []chunk
	slots  []recvSlot
	idle   []uint32 // slots to be posted
	wrs    []verbs.RecvWR
	sges   []verbs.SGE
}

// chunk is memory of slots.
type chunk struct {
	block rc.Block
	mr    verbs.MR
}

type recvSlot struct {
	mem  []byte
	addr uint64
	lkey uint32
}

// postBatch is how many receives are posted at once.
const postBatch = 16

// extend makes slots until there are n, and posts them.
func (r *receiver) extend(e *endpoint, n int) error {
	if r.size == 0 {
		r.size = (e.mtu + verbs.GRHLen + 63) &^ 63
		r.wrs, r.sges = make([]verbs.RecvWR, postBatch), make([]verbs.SGE, postBatch)
		for i := range r.wrs {
			r.wrs[i].SGL = r.sges[i : i+1 : i+1]
		}
	}
	for len(r.slots) < n {
		want := min((n-len(r.slots))*r.size, rc.MaxBlock)
		b, err := e.dev.Get(want, true)
		if err != nil {
			return err
		}
		mem := b.Bytes()
		k := min(len(mem)/r.size, r.room-len(r.slots))
		mr, err := e.dev.PD().RegMR(mem[:k*r.size], verbs.LocalWrite)
		if err != nil {
			e.dev.Put(b)
			return err
		}
		r.chunks = append(r.chunks, chunk{b, mr})
		for i := range k {
			r.idle = append(r.idle, uint32(len(r.slots)))
			r.slots = append(r.slots, recvSlot{
				mem[i*r.size : (i+1)*r.size : (i+1)*r.size], mr.Addr() + uint64(i*r.size), mr.LKey(),
			})
		}
	}
	return r.post(e, n)
}

// post posts idle slots while fewer than limit are posted.
func (r *receiver) post(e *endpoint, limit int) error {
	for len(r.idle) > 0 && r.posted < limit {
		n := min(len(r.idle), len(r.wrs), limit-r.posted)
		rest := len(r.idle) - n
		for i, slot := range r.idle[rest:] {
			m := &r.slots[slot]
			r.sges[i] = verbs.SGE{Addr: m.addr, Length: uint32(r.size), LKey: m.lkey}
			r.wrs[i].ID = uint64(slot)
		}
		k, err := e.qp.PostRecv(r.wrs[:n])
		r.idle = append(r.idle[:rest], r.idle[rest+k:]...)
		r.posted += k
		if err != nil || k == 0 {
			return err
		}
	}
	return nil
}

// free gives the memory back.
func (r *receiver) free(e *endpoint) error {
	var first error
	for _, c := range r.chunks {
		if err := e.dev.PutRegistered(c.mr, c.block); first == nil {
			first = err
		}
	}
	r.chunks, r.slots, r.idle = nil, nil, nil
	return first
}

// Datagram is one that was received. Its payload is memory of the socket's, until the next one is taken or EndRead.
type Datagram struct {
	Payload []byte
	From    net.Addr // what Config.Intern made of the sender
	Imm     uint32
	HasImm  bool
}

// reading is the reader's state, guarded by Socket.rmu.
type reading struct {
	wcs  [32]verbs.WC
	at   *endpoint // whose completions they are
	i, n int
	turn int // of the endpoints
	held *endpoint
	slot uint32 // that the reader looks at, of held
	spin rc.Spinner
	last *peer // who sent last
	from struct {
		e   *endpoint
		src netip.Addr
		qpn uint32
	}
}

// BeginRead waits for a datagram, which Next then gives. EndRead must follow, whatever it returns.
func (s *Socket) BeginRead() error {
	s.rmu.Lock()
	for {
		if err := s.rd.Err(); err != nil {
			return err
		}
		ok, err := s.look()
		if ok || err != nil {
			return err
		}
		if err := s.waitRead(); err != nil {
			return err
		}
	}
}

// EndRead lets others read.
func (s *Socket) EndRead() {
	s.putBack()
	s.rmu.Unlock()
}

// Next returns the next datagram that is there already, if there is one.
func (s *Socket) Next() (d Datagram, ok bool) {
	s.putBack()
	for {
		r := &s.reading
		if r.i == r.n {
			if found, err := s.look(); !found || err != nil {
				return d, false
			}
		}
		wc := &r.wcs[r.i]
		r.i++
		if d, ok = s.accept(r.at, wc); ok {
			return d, true
		}
		s.putBack()
	}
}

// look polls the endpoints, unless there are completions that nobody has taken yet. It tells whether there are any now.
func (s *Socket) look() (bool, error) {
	r := &s.reading
	if r.i < r.n {
		return true, nil
	}
	s.freeRetired()
	eps := *s.eps.Load()
	for k := range eps {
		e := eps[(r.turn+k)%len(eps)]
		if e.failed.Load() != nil {
			continue
		}
		n, err := e.rx.cq.Poll(r.wcs[:])
		if err != nil {
			s.fail(e, err)
		}
		if n > 0 {
			r.at, r.i, r.n, r.turn = e, 0, n, (r.turn+k+1)%len(eps)
			e.rx.posted -= n
			return true, nil
		}
	}
	return false, s.hopeless(eps)
}

// spinInner is how long a provider may look for completions in the call that arms.
const spinInner = 8 * time.Microsecond

// waitRead waits for completions: it spins, then arms all queues, looks once more, and parks.
func (s *Socket) waitRead() error {
	r := &s.reading
	if d := r.spin.Budget(s.busy.Load(), false); d > 0 {
		for turns := rc.NewTurns(d); ; {
			if ok, err := s.look(); ok || err != nil {
				r.spin.Account(ok, turns.Took())
				return err
			}
			if err := s.rd.Err(); err != nil {
				return err
			}
			if !turns.Next() {
				break
			}
		}
		r.spin.Account(false, 0)
	}
	eps := *s.eps.Load()
	for _, e := range eps {
		if e.failed.Load() != nil || e.rx.armed.Swap(true) {
			continue
		}
		if e.rx.one != nil {
			n, armed, err := e.rx.one.PollOrArm(r.wcs[:], spinInner, true)
			if !armed { // if it is, Notify may have been here already
				e.rx.armed.Store(false)
			}
			if err != nil {
				s.fail(e, err)
			}
			if n > 0 {
				r.at, r.i, r.n = e, 0, n
				e.rx.posted -= n
				return nil
			}
			continue
		}
		if err := e.rx.cq.Arm(); err != nil {
			e.rx.armed.Store(false)
			s.fail(e, err)
		}
	}
	if ok, err := s.look(); ok || err != nil {
		return err
	}
	return s.rd.Wait()
}

// accept makes a datagram of a completion, unless it is none for the reader.
func (s *Socket) accept(e *endpoint, wc *verbs.WC) (d Datagram, ok bool) {
	r := &s.reading
	if wc.ID >= uint64(len(e.rx.slots)) {
		return d, false
	}
	r.held, r.slot = e, uint32(wc.ID)
	if wc.Status != verbs.Success {
		s.fail(e, wc.Status)
		return d, false
	}
	b := e.rx.slots[r.slot].mem
	if wc.ByteLen < verbs.GRHLen || uint64(wc.ByteLen) > uint64(len(b)) {
		return d, false
	}
	d.Payload = b[verbs.GRHLen:wc.ByteLen:wc.ByteLen]
	d.Imm, d.HasImm = wc.Imm, wc.Flags&verbs.WCWithImm != 0
	var g verbs.GRH
	if wc.Flags&verbs.WCGRH != 0 {
		var err error
		if g, err = verbs.ParseGRH(b, wc.Flags); err != nil {
			s.bad.Add(1)
			return d, false
		}
		if s.noLoopback.Load() && g.Dest.IsMulticast() && s.own(e, wc.SrcQPN, g.Source) {
			return d, false
		}
	}
	p := r.last
	if p == nil || p.gone.Load() || r.from.e != e || r.from.qpn != wc.SrcQPN || r.from.src != g.Source || !g.Source.IsValid() {
		p = s.peers.sender(e, wc, &g)
		r.last, r.from.e, r.from.qpn, r.from.src = p, e, wc.SrcQPN, g.Source
	}
	p.heard()
	if to := s.dialed.Load(); to != nil && !to.is(p) {
		return d, false
	}
	d.From = p.shown
	s.read.Add(1)
	s.readTotal.Add(uint64(len(d.Payload)))
	return d, true
}

// own tells whether a datagram to a group is one of the socket's.
func (s *Socket) own(e *endpoint, qpn uint32, src netip.Addr) bool {
	for _, o := range *s.eps.Load() {
		if o.num == qpn && o.key.dev == e.key.dev && s.sources.has(src) {
			return true
		}
	}
	return false
}

// putBack gives the slot that the reader looked at back to the device, with others.
func (s *Socket) putBack() {
	r := &s.reading
	e := r.held
	if e == nil {
		return
	}
	r.held = nil
	e.rx.idle = append(e.rx.idle, r.slot)
	if e.failed.Load() != nil {
		return
	}
	depth := e.depth()
	if len(e.rx.idle) < postBatch && e.rx.posted > depth/2 {
		return // there will be more of them
	}
	err := e.rx.post(e, depth)
	if err == nil && len(e.rx.slots) < depth {
		// Memory that is not to be had leaves the buffer smaller than asked for.
		if err = e.rx.extend(e, depth); !errors.Is(err, syscall.ENODEV) {
			return
		}
	}
	if err != nil {
		s.fail(e, err)
	}
}
