package ring

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

	"github.com/go-rdma/rdma/internal/verbs"
)

// nic is a device whose peer is the test itself: nothing arrives but what the test
// stages, and what a Conn posts is looked at as it is posted. It has one connection at a time.
type nic struct {
	verbs.Device
	mrs  map[uint32]*nicMR
	next uint32
	link *nicLink
}

func newNIC() *nic { return &nic{mrs: make(map[uint32]*nicMR)} }

func (n *nic) Name() string                             { return "nic0" }
func (n *nic) Info() *verbs.DeviceInfo                  { return &verbs.DeviceInfo{Name: "nic0"} }
func (n *nic) Dup() (verbs.Device, error)               { return n, nil }
func (n *nic) AllocPD() (verbs.PD, error)               { return nicPD{n: n}, nil }
func (n *nic) CreateCQ(*verbs.CQAttr) (verbs.CQ, error) { return nicCQ{n.link}, nil }
func (n *nic) Close() error                             { return nil }

type nicProvider struct{ verbs.Provider }

func (nicProvider) Name() string { return "nic" }

type nicPD struct {
	verbs.PD
	n *nic
}

func (p nicPD) Close() error { return nil }

func (p nicPD) NewArena(size int) (verbs.Arena, error) { return nicArena(make([]byte, size)), nil }

func (p nicPD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	p.n.next++
	mr := &nicMR{p.n, mem, p.n.next, access}
	p.n.mrs[mr.key] = mr
	return mr, nil
}

type nicArena []byte

func (a nicArena) Bytes() []byte { return a }
func (a nicArena) Close() error  { return nil }

// nicMR is a region, with addresses of its own.
type nicMR struct {
	n      *nic
	mem    []byte
	key    uint32
	access verbs.Access
}

func (m *nicMR) Bytes() []byte { return m.mem }
func (m *nicMR) Addr() uint64  { return uint64(m.key) << 32 }
func (m *nicMR) LKey() uint32  { return m.key }
func (m *nicMR) RKey() uint32  { return m.key }
func (m *nicMR) Close() error  { delete(m.n.mrs, m.key); return nil }

// at returns a range of a region, or nil if there is none.
func (n *nic) at(key uint32, addr uint64, size uint32) []byte {
	m := n.mrs[key]
	if m == nil || addr < m.Addr() || addr-m.Addr()+uint64(size) > uint64(len(m.mem)) {
		return nil
	}
	return m.mem[addr-m.Addr():][:size]
}

// nicLink is the connection: what its identifier and its queues share.
type nicLink struct {
	n       *nic
	handler func(verbs.Event)
	hello   []byte // the peer's private data
	attr    verbs.QPInitAttr

	staged      []verbs.WC // what arrives with the next Poll
	receives    int        // posted and not consumed
	outstanding []verbs.SendWR
	errored     bool // in the error state

	// posted is asked about each request as it is posted; the first error is kept.
	posted func(wr *verbs.SendWR, payload []byte) error
	err    error
}

type nicID struct {
	verbs.CMID
	*nicLink
}

func (id nicID) Device() verbs.Device            { return id.n }
func (id nicID) Provider() verbs.Provider        { return nicProvider{} }
func (id nicID) LocalAddr() netip.AddrPort       { return netip.AddrPort{} }
func (id nicID) RemoteAddr() netip.AddrPort      { return netip.AddrPort{} }
func (id nicID) SetHandler(h func(verbs.Event))  { id.handler = h }
func (id nicID) Accept(p *verbs.ConnParam) error { return id.said(p) }
func (id nicID) Reject([]byte) error             { return nil }
func (id nicID) Disconnect() error               { return nil }
func (id nicID) Close() error                    { return nil }
func (id nicID) Request() (p *verbs.ConnParam)   { return &verbs.ConnParam{PrivateData: id.hello} }
func (id nicID) said(p *verbs.ConnParam) error   { return id.posted(nil, p.PrivateData) }
func (id nicID) CreateQP(_ verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	id.attr = *attr
	return nicQP{link: id.nicLink}, nil
}

func (id nicID) Connect(_ context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	return id.Request(), id.said(p)
}

type nicCQ struct{ link *nicLink }

func (q nicCQ) Arm() error   { return nil }
func (q nicCQ) Close() error { return nil }

func (q nicCQ) Poll(wc []verbs.WC) (int, error) {
	n := copy(wc, q.link.staged)
	q.link.staged = q.link.staged[:copy(q.link.staged, q.link.staged[n:])]
	return n, nil
}

type nicQP struct {
	verbs.QP
	link *nicLink
}

const nicSends, nicInline = 80, 64

func (q nicQP) Num() uint32          { return 2 }
func (q nicQP) Stats() verbs.QPStats { return verbs.QPStats{} }
func (q nicQP) Close() error         { return nil }

func (q nicQP) Cap() verbs.QPCap {
	return verbs.QPCap{MaxSendWR: nicSends, MaxRecvWR: 300, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: nicInline}
}

func (q nicQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n := min(len(wrs), q.Cap().MaxRecvWR-q.link.receives)
	q.link.receives += n
	return n, nil
}

func (q nicQP) PostSend(wrs []verbs.SendWR) (int, error) {
	l := q.link
	for i := range wrs {
		wr := wrs[i]
		if len(l.outstanding) == nicSends {
			return i, nil
		}
		payload := bytes.Clone(wr.Inline)
		for _, s := range wr.SGL {
			b := l.n.at(s.LKey, s.Addr, s.Length)
			if b == nil && l.err == nil {
				l.err = fmt.Errorf("%v from memory that is not registered: %+v", wr.Op, s)
			}
			payload = append(payload, b...)
		}
		if err := l.posted(&wr, payload); err != nil && l.err == nil {
			l.err = err
		}
		wr.SGL, wr.Inline = nil, nil
		l.outstanding = append(l.outstanding, wr)
	}
	return len(wrs), nil
}

// complete acknowledges the n oldest requests.
func (l *nicLink) complete(n int, st verbs.Status) {
	n = min(n, len(l.outstanding))
	for _, wr := range l.outstanding[:n] {
		if wr.Flags&verbs.Signaled != 0 || st != verbs.Success {
			l.staged = append(l.staged, verbs.WC{ID: wr.ID, Status: st, Op: verbs.WCWrite})
		}
	}
	l.outstanding = l.outstanding[:copy(l.outstanding, l.outstanding[n:])]
}

// ToError flushes what is outstanding.
func (q nicQP) ToError() error {
	q.link.errored = true
	q.link.complete(nicSends, verbs.WRFlushErr)
	return nil
}
