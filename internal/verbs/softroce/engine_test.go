package softroce

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

var (
	addrA, addrB   = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	addrA6, addrB6 = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
)

// node is a device with one domain and some registered memory.
type node struct {
	t     testing.TB
	dev   *device
	pd    *pd
	arena verbs.Arena
	mr    verbs.MR // of all of the arena
	mem   []byte
	addr  netip.Addr
	ends  []*end

	persist func(mem []byte) error // what FLUSHes of mr do; nil: nothing

	closers []interface{ Close() error }
}

const nodeMem = 1 << 20

type opener interface {
	Open(h netio.Handler) (netio.Conn, error)
}

func newNode(t testing.TB, cfg *Config, host opener, addr netip.Addr) *node {
	if cfg == nil {
		cfg = &Config{}
	}
	cfg.Open = host.Open
	dev, err := newDevice(cfg, 5)
	require.NoError(t, err)
	dev.start()
	n := &node{t: t, dev: dev, addr: addr}
	p, err := dev.AllocPD()
	require.NoError(t, err)
	n.pd = p.(*pd)
	n.arena, err = p.NewArena(nodeMem)
	require.NoError(t, err)
	n.mem = n.arena.Bytes()
	n.mr = n.regPersistent(n.mem, func(mem []byte) error {
		if n.persist == nil {
			return nil
		}
		return n.persist(mem)
	})
	t.Cleanup(n.close)
	return n
}

func (n *node) reg(mem []byte, access verbs.Access) verbs.MR {
	m, err := n.pd.RegMR(mem, access)
	require.NoError(n.t, err)
	return m
}

func (n *node) regPersistent(mem []byte, persist func(mem []byte) error) verbs.MR {
	m, err := n.pd.RegPersistentMR(mem,
		verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic|verbs.FlushGlobal, persist)
	require.NoError(n.t, err)
	return m
}

func (n *node) close() {
	for _, e := range n.ends {
		require.NoError(n.t, e.q.Close())
		require.NoError(n.t, e.cq.Close())
	}
	for _, c := range n.closers {
		require.NoError(n.t, c.Close())
	}
	require.NoError(n.t, n.mr.Close())
	require.NoError(n.t, n.arena.Close())
	require.NoError(n.t, n.pd.Close())
	require.NoError(n.t, n.dev.Close())
	for range 1000 { // a handler may be running
		if n.dev.refs.Load() == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	require.Zero(n.t, n.dev.refs.Load(), "the device is held still")
}

// end is a queue pair with a completion queue for both directions.
type end struct {
	*node
	q  *qp
	cq verbs.CQ
}

func (n *node) newEnd(attr verbs.QPInitAttr, depth int, notify func()) *end {
	cq, err := n.dev.CreateCQ(&verbs.CQAttr{Depth: depth, Notify: notify})
	require.NoError(n.t, err)
	attr.Type, attr.SendCQ, attr.RecvCQ = verbs.RC, cq, cq
	q, err := n.dev.newQP(n.pd, &attr)
	require.NoError(n.t, err)
	e := &end{n, q, cq}
	n.ends = append(n.ends, e)
	return e
}

// link says how two ends are connected.
type link struct {
	mtu                 verbs.MTU
	psnA, psnB          uint32
	timeout, retry, rnr uint8
	rd                  uint8 // READs and atomics outstanding, either way
	attr                verbs.QPInitAttr
	srq                 *verbs.SRQAttr // of a peer's end
	depth               int
	notifyA, notifyB    func()
	commEstA, commEstB  func()
}

const none = 255 // no retries

func (l *link) defaults() {
	if l.mtu == 0 {
		l.mtu = 1024
	}
	if l.timeout == 0 {
		l.timeout = 19
	}
	switch l.retry {
	case 0:
		l.retry = 7
	case none:
		l.retry = 0
	}
	if l.rnr == 0 {
		l.rnr = 7
	}
	if l.depth == 0 {
		l.depth = 1024
	}
}

// connected returns two connected ends.
func connected(a, b *node, l link) (x, y *end) {
	l.defaults()
	x = a.newEnd(l.attr, l.depth, l.notifyA)
	y = b.newEnd(l.attr, l.depth, l.notifyB)
	x.connect(y, l)
	return x, y
}

// connect connects two fresh ends. The link has its defaults.
func (e *end) connect(to *end, l link) {
	a, b := e.node, to.node
	e.q.onCommEst, to.q.onCommEst = l.commEstA, l.commEstB
	at := rcAttr{
		path: &netio.Path{Local: a.addr, Remote: b.addr}, destQPN: to.q.num, sqPSN: l.psnA, rqPSN: l.psnB,
		mtu: l.mtu, ackTimeout: l.timeout, retryCount: l.retry, rnrRetry: l.rnr,
		maxRDAtomic: l.rd, maxDestRDAtomic: l.rd,
	}
	bt := at
	bt.path, bt.destQPN, bt.sqPSN, bt.rqPSN = &netio.Path{Local: b.addr, Remote: a.addr}, e.q.num, l.psnB, l.psnA
	require.NoError(a.t, e.q.connect(&at))
	require.NoError(a.t, to.q.connect(&bt))
}

// pair is two nodes on a network of their own.
func pair(t testing.TB, seed uint64, o simnet.Options) (*simnet.Network, *node, *node) {
	net := simnet.New(simnet.Seed(t, seed), o)
	return net, newNode(t, nil, net.Host(addrA), addrA), newNode(t, nil, net.Host(addrB), addrB)
}

func (n *node) sge(off, length int) verbs.SGE {
	return verbs.SGE{Addr: n.mr.Addr() + uint64(off), Length: uint32(length), LKey: n.mr.LKey()}
}

func (n *node) sgl(off, length int) []verbs.SGE { return []verbs.SGE{n.sge(off, length)} }

// send posts requests, which must all be taken.
func (e *end) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	n, err := e.q.PostSend(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

func (e *end) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	n, err := e.q.PostRecv(wrs)
	require.NoError(e.t, err)
	require.Equal(e.t, len(wrs), n)
}

// completions returns everything in the completion queue.
func (e *end) completions() []verbs.WC {
	e.t.Helper()
	var all []verbs.WC
	wc := make([]verbs.WC, 16)
	for {
		n, err := e.cq.Poll(wc)
		require.NoError(e.t, err)
		if n == 0 {
			return all
		}
		all = append(all, wc[:n]...)
	}
}

// outcome is a completion without what tests seldom look at.
type outcome struct {
	ID     uint64
	Status verbs.Status
}

func (e *end) outcomes() []outcome {
	e.t.Helper()
	var all []outcome
	for _, wc := range e.completions() {
		all = append(all, outcome{wc.ID, wc.Status})
	}
	return all
}

// peer is the test itself, as the other end of a connection: it sees every packet
// and sends what it likes.
type peer struct {
	t    *testing.T
	net  *simnet.Network
	conn netio.Conn
	path *netio.Path
	tx   *netio.TxBatch
	end  *end
	qpn  uint32

	mu  sync.Mutex
	got []wire.Packet
}

const (
	peerQPN = 0x070777
	peerPSN = 1000 // of the peer's first request
	endPSN  = 5000 // of the end's
)

// newPeer connects an end to the test. It runs in a synctest bubble.
func newPeer(t *testing.T, l link) *peer { return newPeerConfig(t, l, nil) }

func newPeerConfig(t *testing.T, l link, cfg *Config) *peer {
	l.defaults()
	net := simnet.New(1, simnet.Options{})
	n := newNode(t, cfg, net.Host(addrA, addrA6), addrA)
	p := &peer{t: t, net: net, path: &netio.Path{Local: addrB, Remote: addrA}, tx: netio.NewTxBatch(), qpn: peerQPN}
	conn, err := net.Host(addrB, addrB6).Open(p)
	require.NoError(t, err)
	p.conn = conn
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	if l.srq != nil {
		l.attr.SRQ = n.newSRQ(*l.srq)
	}
	p.end = n.newEnd(l.attr, l.depth, l.notifyA)
	p.end.q.onCommEst = l.commEstA
	if l.psnA == 0 {
		l.psnA, l.psnB = endPSN, peerPSN
	}
	require.NoError(t, p.end.q.connect(&rcAttr{
		path: &netio.Path{Local: addrA, Remote: addrB}, destQPN: peerQPN, sqPSN: l.psnA, rqPSN: l.psnB,
		mtu: l.mtu, ackTimeout: l.timeout, retryCount: l.retry, rnrRetry: l.rnr,
		maxRDAtomic: l.rd, maxDestRDAtomic: l.rd,
	}))
	return p
}

func (p *peer) HandlePackets(ps []netio.Packet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range ps {
		var h wire.Packet
		if err := h.Decode(ps[i].Data); err != nil {
			panic(err)
		}
		h.Payload = slices.Clone(h.Payload)
		p.got = append(p.got, h)
	}
}

// send sends packets to the end, which handles them as one batch.
func (p *peer) send(hs ...wire.Packet) {
	p.t.Helper()
	for i := range hs {
		if p.tx.Full() {
			require.NoError(p.t, p.conn.Send(p.tx))
		}
		h := hs[i]
		if h.PKey == 0 {
			h.PKey = wire.DefaultPKey
		}
		if h.DestQP == 0 {
			h.DestQP = p.end.q.num
		}
		if h.Pad == 0 {
			h.Pad = wire.PadFor(len(h.Payload))
		}
		h.PutHeaders(p.tx.Add(p.path, h.HeaderLen()))
		p.tx.Payload(h.Payload)
	}
	require.NoError(p.t, p.conn.Send(p.tx))
	synctest.Wait()
}

// take returns what the end has sent since the last call.
func (p *peer) take() []wire.Packet {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

// sent is the outline of a packet.
type sent struct {
	Op   wire.Opcode
	PSN  uint32
	Ask  bool
	Size int
}

func (p *peer) takeSent() []sent {
	var s []sent
	for _, h := range p.take() {
		s = append(s, sent{h.Opcode, h.PSN, h.AckReq, len(h.Payload)})
	}
	return s
}

// answer is the outline of an acknowledgement.
type answer struct {
	PSN      uint32
	Syndrome uint8
	MSN      uint32
}

func (p *peer) answers() []answer {
	p.t.Helper()
	var s []answer
	for _, h := range p.take() {
		require.Equal(p.t, wire.RCAck, h.Opcode)
		require.EqualValues(p.t, peerQPN, h.DestQP)
		require.False(p.t, h.AckReq)
		s = append(s, answer{h.PSN, h.AETH.Syndrome, h.MSN})
	}
	return s
}

// Packets for a peer to send.

func packet(op wire.Opcode, psn uint32, payload []byte) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, Payload: payload}
}

func ask(h wire.Packet) wire.Packet { h.AckReq = true; return h }

// writeTo adds a RETH for a range of the end's memory.
func (p *peer) writeTo(h wire.Packet, off, length int) wire.Packet {
	h.RETH = wire.RETH{VA: p.end.mr.Addr() + uint64(off), RKey: p.end.mr.RKey(), Length: uint32(length)}
	return h
}

func ack(psn uint32) wire.Packet { return response(psn, wire.SyndromeACK) }

func response(psn uint32, syndrome uint8) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: psn}, AETH: wire.AETH{Syndrome: syndrome}}
}

// pattern is n bytes that differ from those of other seeds.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, err := r.Read(b)
	if err != nil {
		panic(err)
	}
	return b
}

// bubble runs a test on simulated time.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func isUnsupported(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

func netipPort(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 50000) }

type netioPacket = netio.Packet

func newPath(local, remote netip.Addr) *netio.Path { return &netio.Path{Local: local, Remote: remote} }
