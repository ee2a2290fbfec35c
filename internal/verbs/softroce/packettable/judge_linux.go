package packettable

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// Config says who is judged.
type Config struct {
	Provider verbs.Provider
	Device   string
	Addr     netip.Addr // where it listens
	Peer     *Peer
	Stranger *Peer // another host

	// Linux says that it is rdma_rxe of Linux 6.1.
	Linux bool

	// Panics asks for those rows only, of which each would bring rdma_rxe of Linux 6.1 down.
	Panics bool

	// Patience bounds each wait for what must come; 0: 10 s. Quiet is how long a queue pair that must not answer any more is listened to; 0: 10 ms.
	Patience, Quiet time.Duration
}

// Test judges a responder by all rows.
func Test(t *testing.T, cfg Config) {
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.Quiet == 0 {
		cfg.Quiet = 10 * time.Millisecond
	}
	j := newJudge(t, cfg)
	failures := 0
	for _, r := range Rows() {
		if cfg.Panics && (r.Linux == nil || !r.Linux.Panic) {
			continue
		}
		if !t.Run(r.Name, func(t *testing.T) { j.judge(t, &r) }) {
			failures++
		}
		// Each may have waited for what does not come.
		require.Less(t, failures, 20, "rows that fail")
	}
	require.Empty(t, cfg.Peer.Faults())
	require.Empty(t, cfg.Stranger.Faults())
}

// Memory of the responder's: a page or more for each region, then the receives.
const (
	page      = 4096
	regionOff = 512 // of a region in its page, unless it is Odd
	largeAt   = int(regions) * page
	recvAt    = largeAt + LargeSize + 2*page
	arenaSize = recvAt + maxRecv*recvRoom + page
)

// at returns where a region lies in the arena.
func (r Region) at() (off, size int) {
	switch r {
	case Odd:
		return int(r)*page + regionOff + 4, RegionSize
	case Large:
		return largeAt + page, LargeSize
	}
	return int(r)*page + regionOff, RegionSize
}

var access = [regions]verbs.Access{
	Main: anyAccess, Odd: anyAccess, Large: anyAccess, Foreign: anyAccess, Closed: anyAccess,
	ReadOnly:  verbs.RemoteRead,
	WriteOnly: verbs.LocalWrite | verbs.RemoteWrite,
	NoAtomic:  verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead,
	Local:     verbs.LocalWrite,
	Flushable: anyAccess | verbs.FlushGlobal,
	Revocable: anyAccess | verbs.RemoteInvalidate, Persistent: anyAccess | verbs.FlushGlobal | verbs.FlushPersistent,
}

const anyAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead | verbs.RemoteAtomic

// judge has what all rows share.
type judge struct {
	Config
	l           verbs.Listener
	pd, foreign verbs.PD
	dev         verbs.Device
	mem         []byte // the arena of all regions but Foreign
	fmem        []byte // that of Foreign, of the same layout
	recv        verbs.MR
	addr        [regions]uint64
	key         [regions]uint32

	mu     sync.Mutex
	synced []Span // of Persistent, since the row began
}

func newJudge(t *testing.T, cfg Config) *judge {
	j := &judge{Config: cfg}
	closes := func(what string, c func() error) {
		t.Cleanup(func() { require.NoError(t, c(), "closing %s", what) })
	}
	var err error
	j.dev, err = cfg.Provider.Open(cfg.Device)
	require.NoError(t, err)
	closes("device", j.dev.Close)
	domain := func() (verbs.PD, []byte) {
		pd, err := j.dev.AllocPD()
		require.NoError(t, err)
		closes("domain", pd.Close)
		pages := os.Getpagesize()
		a, err := pd.NewArena((arenaSize + pages - 1) / pages * pages)
		require.NoError(t, err)
		closes("arena", a.Close)
		return pd, a.Bytes()[:arenaSize]
	}
	j.pd, j.mem = domain()
	j.foreign, j.fmem = domain()
	for r := Main; r < regions; r++ {
		pd, mem := j.pd, j.mem
		if r == Foreign {
			pd, mem = j.foreign, j.fmem
		}
		if r == Revocable {
			continue // once it is invalid it stays so
		}
		mr := j.register(t, r, pd, mem)
		if r == Closed {
			require.NoError(t, mr.Close())
			continue
		}
		closes("region", mr.Close)
	}
	j.recv, err = j.pd.RegMR(j.mem[recvAt:recvAt+maxRecv*recvRoom], verbs.LocalWrite)
	require.NoError(t, err)
	closes("region", j.recv.Close)
	j.l, err = cfg.Provider.Listen(t.Context(), &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(cfg.Addr, 0),
	})
	require.NoError(t, err)
	closes("listener", j.l.Close)
	return j
}

// register makes a region.
func (j *judge) register(t *testing.T, r Region, pd verbs.PD, mem []byte) verbs.MR {
	off, size := r.at()
	reg := pd.RegMR
	if p, ok := pd.(verbs.Persister); ok && r == Persistent {
		reg = func(mem []byte, access verbs.Access) (verbs.MR, error) {
			return p.RegPersistentMR(mem, access, j.persist)
		}
	}
	mr, err := reg(mem[off:off+size], access[r])
	if j.Linux && (r == Revocable || r == Flushable || r == Persistent) {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		mr, err = pd.RegMR(mem[off:off+size], anyAccess)
	}
	require.NoError(t, err)
	j.addr[r], j.key[r] = mr.Addr(), mr.RKey()
	return mr
}

// persist is what makes a range of Persistent persistent.
func (j *judge) persist(mem []byte) error {
	first, _ := Persistent.at()
	s := Span{int(verbs.AddressOf(mem)-verbs.AddressOf(j.mem)) - first, len(mem)}
	j.mu.Lock()
	j.synced = append(j.synced, s)
	j.mu.Unlock()
	if s.Off == unpersistent {
		return errors.New("a disk that is broken")
	}
	return nil
}

// fill gives memory its first contents: of regions Memory, the rest zeros.
func fill(mem []byte) {
	clear(mem)
	for r := Main; r < regions; r++ {
		off, size := r.at()
		copy(mem[off:], Memory(0, min(size, RegionSize)))
	}
}

// trial is a row at work.
type trial struct {
	*judge
	*testing.T
	row   *Row
	want  *Outcome
	ctx   context.Context
	id    verbs.CMID
	qp    verbs.QP
	cq    verbs.CQ
	link  *link
	recvs []int // sizes of those that were posted
	wcs   []WC
	srq   verbs.SRQ
	low   atomic.Int32 // times that it told
	mr    verbs.MR     // Revocable
}

func (j *judge) judge(t *testing.T, r *Row) {
	ctx, cancel := context.WithTimeout(t.Context(), j.Patience)
	defer cancel()
	x := &trial{judge: j, T: t, row: r, want: &r.Want, ctx: ctx}
	if j.Linux && r.Linux != nil {
		x.want = &r.Linux.Outcome
		t.Log("rdma_rxe of Linux 6.1: " + r.Linux.Why)
		if r.Linux.Panic {
			if !j.Panics {
				return
			}
			x.want = &r.Want
		}
	}
	fill(j.mem)
	fill(j.fmem)
	j.synced = nil
	if r.names(Revocable) {
		x.mr = j.register(t, Revocable, j.pd, j.mem)
		defer func() { require.NoError(t, x.mr.Close()) }()
	}
	x.link = j.Peer.newLink(j.Addr)
	defer x.link.close()
	x.open()
	for i, s := range r.Steps {
		if len(s.Recv) > 0 && i > 0 && len(x.want.Answers[i-1]) == 0 {
			time.Sleep(j.Quiet) // nothing says that what came before has been dropped
		}
		x.post(s.Recv)
		if s.Close {
			require.NoError(t, x.mr.Close())
		}
		x.send(&s)
		want := x.want.Answers[i]
		got := x.answers(len(want), j.Patience)
		for k := range got {
			if want[k].Original == anyOriginal {
				got[k].Original = anyOriginal
			}
		}
		assert.Equal(t, text(want), text(got), "step %d", i)
		if t.Failed() {
			break
		}
	}
	if !x.want.Open {
		x.poll(len(x.want.WCs), j.Patience)
	}
	x.probe()
	x.poll(len(x.want.WCs), j.Patience)
	assert.Equal(t, x.want.WCs, x.wcs)
	x.memory()
	j.mu.Lock()
	assert.Equal(t, x.want.Synced, j.synced, "made persistent")
	j.mu.Unlock()
	x.toldLow()
	x.close()
	assert.Empty(t, j.Peer.Faults())
}

// open makes the queue pair and connects it.
func (x *trial) open() {
	var err error
	if x.row.UD {
		x.id, err = x.Provider.Resolve(x.ctx, &verbs.CMIDAttr{
			PortSpace: verbs.PSUDP, Device: x.Device, Local: netip.AddrPortFrom(x.Addr, 0), Handler: func(verbs.Event) {},
		})
	} else {
		x.link.request(x.l.Addr().Port(), x.row.Depth)
		x.id, err = x.l.GetRequest(x.ctx)
	}
	require.NoError(x, err)
	x.cq, err = x.dev.CreateCQ(&verbs.CQAttr{Depth: 4 * maxRecv})
	require.NoError(x, err)
	attr := &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 1, MaxRecvWR: maxRecv, MaxSendSGE: 1, MaxRecvSGE: 1, MinRNRTimer: x.row.Timer,
	}
	if attr.MinRNRTimer == 0 {
		attr.MinRNRTimer = anyTimer
	}
	if x.row.UD {
		attr.Type = verbs.UD
	}
	if x.row.SRQ {
		x.srq, err = x.pd.CreateSRQ(&verbs.SRQAttr{MaxWR: maxRecv, MaxSGE: 1, LimitEvent: func() { x.low.Add(1) }})
		require.NoError(x, err)
		attr.SRQ, attr.MaxRecvWR, attr.MaxRecvSGE = x.srq, 0, 0
	}
	x.qp, err = x.id.CreateQP(x.pd, attr)
	require.NoError(x, err)
	x.post(x.row.Recv)
	if x.row.Limit > 0 {
		require.NoError(x, x.srq.ArmLimit(x.row.Limit))
	}
	if x.row.UD {
		x.link.remote = x.qp.Num()
		return
	}
	x.id.SetHandler(func(verbs.Event) {})
	require.NoError(x, x.id.Accept(&verbs.ConnParam{ResponderResources: x.row.Depth, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
	require.NoError(x, x.link.established(x.Patience))
	require.Equal(x, x.qp.Num(), x.link.remote)
}

func (x *trial) close() {
	require.NoError(x, x.qp.Close())
	if x.srq != nil {
		require.NoError(x, x.srq.Close())
	}
	require.NoError(x, x.cq.Close())
	require.NoError(x, x.id.Close())
}

// toldLow checks what the shared receive queue has told.
func (x *trial) toldLow() {
	want := int32(0)
	if x.want.Low {
		want = 1
		assert.Eventually(x, func() bool { return x.low.Load() > 0 }, x.Patience, time.Millisecond, "it has fewer than %d", x.row.Limit)
	}
	if x.srq != nil {
		time.Sleep(x.Quiet)
	}
	assert.Equal(x, want, x.low.Load(), "times that the shared receive queue told")
}

func (x *trial) post(sizes []int) {
	for _, size := range sizes {
		i := len(x.recvs)
		require.Less(x, i, maxRecv)
		x.recvs = append(x.recvs, size)
		wr := verbs.RecvWR{ID: uint64(i)}
		if size > 0 {
			wr.SGL = []verbs.SGE{{Addr: x.recv.Addr() + uint64(i*recvRoom), Length: uint32(size), LKey: x.recv.LKey()}}
		}
		post := x.qp.PostRecv
		if x.srq != nil {
			post = x.srq.PostRecv
		}
		n, err := post([]verbs.RecvWR{wr})
		require.NoError(x, err)
		require.Equal(x, 1, n)
	}
}

// send sends requests.
func (x *trial) send(s *Step) {
	if s.Together {
		var ds [][]byte
		for i := range s.Send {
			ds = append(ds, x.Peer.seal(x.Addr, x.encode(&s.Send[i]), uint16(i), s.Send[i].BadICRC))
		}
		require.NoError(x, x.Peer.sendTogether(x.Addr, ds))
		return
	}
	for i := range s.Send {
		p := x.Peer
		if s.Send[i].Other {
			p = x.Stranger
		}
		require.NoError(x, p.send(x.Addr, p.seal(x.Addr, x.encode(&s.Send[i]), 0, s.Send[i].BadICRC)))
	}
}

// encode returns BTH to pad.
func (x *trial) encode(p *Packet) []byte {
	h := p.Packet
	h.BTH.PSN = wire.PSNAdd(x.link.psn, uint32(p.PSN))
	h.DestQP = x.link.remote
	if p.QPN != nil {
		h.DestQP = p.QPN(h.DestQP)
	}
	if h.PKey == 0 {
		h.PKey = wire.DefaultPKey
	}
	if x.row.UD {
		h.DETH = wire.DETH{QKey: verbs.UDPQKey ^ p.QKey, SrcQP: x.link.qpn}
	}
	if p.At.Region != None {
		va := x.addr[p.At.Region] + uint64(p.At.Off)
		if p.At.VA != 0 {
			va = p.At.VA
		}
		h.RETH.VA, h.RETH.RKey = va, x.key[p.At.Region]^p.At.KeyXor
		h.Atomic.VA, h.Atomic.RKey = va, h.RETH.RKey
		h.InvKey = h.RETH.RKey
	}
	if h.Opcode.HasPayload() {
		h.Pad = wire.PadFor(len(h.Payload))
	}
	b := encode(&h)
	if p.Edit != nil {
		b = p.Edit(b)
	}
	return b
}

// answers waits for n answers.
func (x *trial) answers(n int, patience time.Duration) (as []Answer) {
	limit := time.After(patience)
	for len(as) < n {
		select {
		case h := <-x.link.got:
			as = append(as, Answer{
				Op: h.Opcode, PSN: int(wire.PSNDiff(h.PSN, x.link.psn)), AETH: h.AETH, Original: h.AtomicAck.Original, Data: string(h.Payload),
			})
		case <-limit:
			return as
		}
	}
	return as
}

// text is a list of answers as a person reads it.
func text(as []Answer) (lines []string) {
	for _, a := range as {
		s := fmt.Sprintf("%v, PSN %d", a.Op, a.PSN)
		if a.Op.HasAETH() {
			s += fmt.Sprintf(", syndrome %#x, MSN %d", a.AETH.Syndrome, a.AETH.MSN)
		}
		if a.Op == wire.RCAtomicAck {
			s += fmt.Sprintf(", original %#x", a.Original)
		}
		if a.Op.HasPayload() {
			s += fmt.Sprintf(", %d bytes %x", len(a.Data), a.Data[:min(len(a.Data), 16)])
			if len(a.Data) > 16 {
				s += fmt.Sprintf("..., CRC %08x", crc32.ChecksumIEEE([]byte(a.Data)))
			}
		}
		lines = append(lines, s)
	}
	return lines
}

// poll waits until there are n completions.
func (x *trial) poll(n int, patience time.Duration) {
	var wcs [8]verbs.WC
	for limit := time.Now().Add(patience); ; {
		k, err := x.cq.Poll(wcs[:])
		require.NoError(x, err)
		for _, wc := range wcs[:k] {
			got := WC{ID: wc.ID, Status: wc.Status}
			if wc.Status == verbs.Success {
				got.Op, got.Len = wc.Op, wc.ByteLen
				if wc.Flags&verbs.WCWithImm != 0 {
					got.Imm = wc.Imm
				}
				got.Inv = wc.Flags&verbs.WCWithInv != 0 && wc.Imm == x.key[Revocable]
				if x.row.UD {
					x.datagram(&wc)
				}
			}
			x.wcs = append(x.wcs, got)
		}
		if k > 0 {
			continue
		}
		if len(x.wcs) >= n || !time.Now().Before(limit) {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// datagram checks what stands in front of a datagram, and takes it away.
func (x *trial) datagram(wc *verbs.WC) {
	assert.Equal(x, x.link.qpn, wc.SrcQPN)
	b := x.mem[recvAt+int(wc.ID)*recvRoom:][:verbs.GRHLen]
	g, err := verbs.ParseGRH(b, wc.Flags)
	if assert.NoError(x, err) {
		assert.Equal(x, x.Peer.local, g.Source)
		assert.Equal(x, x.Addr, g.Dest)
	}
	clear(b)
}

// probe finds out in which state the queue pair is, and that nothing is still to come.
func (x *trial) probe() {
	if x.want.Dead {
		ps := []Packet{writeNothing(x.want.Next + 1)}
		if x.row.UD {
			ps = []Packet{datagram(4)}
		}
		x.send(&Step{Send: ps})
		assert.Empty(x, text(x.answers(1, x.Quiet)), "after its end")
		return
	}
	if x.row.UD {
		return // its last datagram has arrived
	}
	last := ack(x.want.Next, x.want.MSN+1)
	if x.want.Open {
		last = nak(inv, x.want.Next, x.want.MSN)
	}
	x.send(&Step{Send: []Packet{writeNothing(x.want.Next)}})
	assert.Equal(x, text(one(last)), text(x.answers(1, x.Patience)), "to a last WRITE of no bytes")
}

// memory checks that all memory is as it was, but for what the row says.
func (x *trial) memory() {
	want := make([]byte, arenaSize)
	fill(want)
	same := func(got []byte, what string) {
		if i := firstDifference(want, got); i >= 0 {
			r := Region(i / page)
			off, _ := r.at()
			assert.Fail(x, "memory has changed", "%s, byte %d (region %d + %d, or receives + %d): %x instead of %x",
				what, i, r, i-off, i-recvAt, got[i:min(i+32, arenaSize)], want[i:min(i+32, arenaSize)])
		}
	}
	same(x.fmem, "another domain's")
	for _, m := range x.want.Mem {
		off := recvAt + m.Recv*recvRoom
		if m.Region != None {
			off, _ = m.Region.at()
		}
		copy(want[off+m.Off:], m.Data)
	}
	if x.want.Header {
		clear(x.mem[recvAt:][:verbs.GRHLen])
	}
	same(x.mem, "its own")
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
