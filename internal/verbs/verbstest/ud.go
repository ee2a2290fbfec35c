package verbstest

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var udTests = []test{
	{"Sizes", testUDSizes},
	{"TooLong", testUDTooLong},
	{"TrafficClass", testUDTrafficClass},
	{"Batch", testUDBatch},
	{"QKey", testUDQKey},
	{"NoReceive", testUDNoReceive},
	{"ShortReceive", testUDShortReceive},
	{"ManySenders", testUDManySenders},
	{"Reply", testUDReply},
	{"WrongRequests", testUDWrongRequests},
	{"BadKey", testUDBadKey},
	{"ErrorState", testUDErrorState},
	{"Busy", testUDBusy},
	{"CloseInAnyOrder", testUDCloseInAnyOrder},
	{"NoAllocations", testUDNoAllocations},
}

// udEnd is an end with a queue pair for datagrams.
type udEnd struct {
	*end
	ud verbs.UDCMID
}

func (s *suite) udOptions(opts []option) *options {
	o := s.options(opts)
	o.init.Type = verbs.UD
	o.access = verbs.LocalWrite
	return o
}

// udEnd makes an end of an identifier.
func (s *suite) udEnd(t testing.TB, id verbs.CMID, opts ...option) *udEnd {
	return s.udEndOf(t, id, s.udOptions(opts))
}

func (s *suite) udEndOf(t testing.TB, id verbs.CMID, o *options) *udEnd {
	ud, ok := id.(verbs.UDCMID)
	require.True(t, ok, "an identifier of datagrams is a UDCMID")
	ev := newEvents()
	e := &udEnd{s.end(t, id, ev, o), ud}
	id.SetHandler(ev.add)
	return e
}

func (s *suite) resolveUD(t testing.TB, p verbs.Provider, attr verbs.CMIDAttr) verbs.UDCMID {
	if attr.PortSpace == 0 {
		attr.PortSpace = verbs.PSUDP
	}
	if attr.Device = s.PassiveDevice; p == s.Active {
		attr.Device = s.ActiveDevice
	}
	id, err := p.Resolve(s.ctx(t), &attr)
	require.NoError(t, err, "Resolve")
	t.Cleanup(func() { closeIt(t, "CMID", id) })
	ud, ok := id.(verbs.UDCMID)
	require.True(t, ok, "an identifier of datagrams is a UDCMID")
	return ud
}

// bound makes an end of the passive side that is bound to the address which the active side knows.
func (s *suite) bound(t testing.TB, opts ...option) *udEnd {
	return s.udEnd(t, s.resolveUD(t, s.Passive, verbs.CMIDAttr{Local: netip.AddrPortFrom(s.Dial, 0)}), opts...)
}

func (s *suite) listenUD(t testing.TB) verbs.Listener {
	attr := s.listenAttr(0)
	attr.PortSpace = verbs.PSUDP
	l, err := s.Passive.Listen(s.ctx(t), attr)
	require.NoError(t, err, "Listen")
	t.Cleanup(func() { closeIt(t, "listener", l) })
	return l
}

func (s *suite) requestUD(t testing.TB, l verbs.Listener) verbs.UDCMID {
	id, ok := s.request(t, l).(verbs.UDCMID)
	require.True(t, ok, "a request for datagrams is a UDCMID")
	return id
}

func (s *suite) activeUD(t testing.TB, port uint16) verbs.UDCMID {
	return s.resolveUD(t, s.Active, verbs.CMIDAttr{Remote: netip.AddrPortFrom(s.Dial, port)})
}

type lookupResult struct {
	p   *verbs.UDParam
	err error
}

func startLookup(ctx context.Context, id verbs.UDCMID, private []byte) func() (*verbs.UDParam, error) {
	ch := make(chan lookupResult, 1)
	go func() {
		p, err := id.Lookup(ctx, private)
		ch <- lookupResult{p, err}
	}()
	return func() (*verbs.UDParam, error) {
		r := <-ch
		return r.p, r.err
	}
}

// dest is where datagrams go.
type dest struct {
	ah        verbs.AH
	qpn, qkey uint32
}

func (e *udEnd) dest(p *verbs.UDParam) dest {
	e.t.Helper()
	ah, err := e.pd.CreateAH(&p.AH)
	require.NoError(e.t, err, "CreateAH")
	e.t.Cleanup(func() { closeIt(e.t, "AH", ah) })
	return dest{ah, p.QPN, p.QKey}
}

func (d dest) to(wr verbs.SendWR) verbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = d.ah, d.qpn, d.qkey
	return wr
}

// udPair makes a passive end that datagrams can be sent to, and an active one that has looked it up.
func (s *suite) udPair(t testing.TB, opts ...option) (a, b *udEnd, d dest) {
	return s.udPairOf(t, s.udOptions(opts), s.udOptions(opts))
}

func (s *suite) udPairOf(t testing.TB, oa, ob *options) (a, b *udEnd, d dest) {
	l := s.listenUD(t)
	b = s.udEndOf(t, s.resolveUD(t, s.Passive, verbs.CMIDAttr{Local: netip.AddrPortFrom(s.Dial, 0)}), ob)
	a = s.udEndOf(t, s.activeUD(t, l.Addr().Port()), oa)
	found := startLookup(s.ctx(t), a.ud, nil)
	require.NoError(t, s.requestUD(t, l).Reply(b.qp.Num(), 0, nil), "Reply")
	p, err := found()
	require.NoError(t, err, "Lookup")
	require.Equal(t, b.qp.Num(), p.QPN)
	require.Equal(t, uint32(verbs.UDPQKey), p.QKey)
	return a, b, a.dest(p)
}

// grhSpan hands out room for a datagram of n bytes and its GRH.
func (e *udEnd) grhSpan(n int) span { return e.span(verbs.GRHLen + n) }

func (e *udEnd) recvSpan(id uint64, n int) span {
	e.t.Helper()
	s := e.grhSpan(n)
	e.recv(verbs.RecvWR{ID: id, SGL: s.sgl()})
	return s
}

// arrived waits for a datagram in a span and returns its completion and its GRH.
func (e *udEnd) arrived(id uint64, in span, want []byte) (verbs.WC, verbs.GRH) {
	e.t.Helper()
	wc := e.waitID(id, verbs.Success)
	require.Equal(e.t, verbs.WCRecv, wc.Op)
	require.EqualValues(e.t, verbs.GRHLen+len(want), wc.ByteLen)
	b := in.bytes()
	require.Equal(e.t, want, append([]byte{}, b[verbs.GRHLen:verbs.GRHLen+len(want)]...))
	in.requireGuards(e.t)
	g, err := verbs.ParseGRH(b, wc.Flags)
	require.NoError(e.t, err)
	return wc, g
}

// goes checks that a datagram gets through, and that it is the next to do so.
func (e *udEnd) goes(d dest, to *udEnd) {
	e.t.Helper()
	const n = 21
	in := to.recvSpan(901, n)
	e.passes(d, to, 901, in, n)
}

// passes is goes where the receive is posted already.
func (e *udEnd) passes(d dest, to *udEnd, id uint64, in span, n int) {
	e.t.Helper()
	out := e.span(n).fill(uint64(to.used))
	e.send(d.to(verbs.SendWR{ID: 902, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: out.sgl()}))
	require.Equal(e.t, verbs.WCSend, e.waitID(902, verbs.Success).Op)
	to.arrived(id, in, out.bytes())
}

// testUDSizes moves datagrams of every size, and looks at all that is told of them.
func testUDSizes(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	limit := int(a.qp.Cap().PathMTU)
	require.Contains(t, []int{256, 512, 1024, 2048, 4096}, limit)
	seed := uint64(1000)
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm} {
		for _, n := range []int{0, 1, 2, 3, 4, 5, limit - 1, limit} {
			for _, inline := range []bool{false, true} {
				if inline && n > a.qp.Cap().MaxInline {
					continue
				}
				seed++
				a.reset()
				b.reset()
				in := b.recvSpan(seed, limit)
				want := pattern(n, seed)
				wr := d.to(verbs.SendWR{ID: seed, Op: op, Flags: verbs.Signaled, Imm: 0x80000000 | uint32(seed)})
				if inline {
					wr.Inline = want
				} else {
					// Two pieces, which need not be of 4 bytes each.
					out := a.span(n).fill(seed)
					first := out.sge()
					first.Length = uint32(n / 3)
					rest := verbs.SGE{Addr: first.Addr + uint64(n/3), Length: uint32(n - n/3), LKey: first.LKey}
					wr.SGL = []verbs.SGE{first, rest}
				}
				a.send(wr)
				require.Equal(t, verbs.WCSend, a.waitID(seed, verbs.Success).Op)
				wc, g := b.arrived(seed, in, want)
				require.Equal(t, a.qp.Num(), wc.SrcQPN)
				flags := verbs.WCGRH
				if s.Dial.Is4() {
					flags |= verbs.WCGRHv4
				}
				if op == verbs.OpSendWithImm {
					flags |= verbs.WCWithImm
					require.Equal(t, 0x80000000|uint32(seed), wc.Imm)
				}
				require.Equal(t, flags, wc.Flags)
				require.Equal(t, s.Dial.WithZone(""), g.Dest)
				require.Equal(t, a.id.LocalAddr().Addr().WithZone(""), g.Source)
				require.EqualValues(t, 64, g.HopLimit)
				require.Zero(t, g.TrafficClass)
				for i := verbs.GRHLen + n; i < in.n; i++ {
					require.Equal(t, byte(guardByte), in.bytes()[i], "byte %d behind the datagram", i-n-verbs.GRHLen)
				}
			}
		}
	}
	// A receive in pieces: the GRH in the first.
	head, tail := b.grhSpan(3), b.span(40)
	b.recv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{head.sge(), tail.sge()}})
	want := pattern(13, 5)
	a.send(d.to(verbs.SendWR{Op: verbs.OpSend, Inline: want}))
	require.EqualValues(t, verbs.GRHLen+13, b.waitID(5, verbs.Success).ByteLen)
	require.Equal(t, want, append(append([]byte{}, head.bytes()[verbs.GRHLen:]...), tail.bytes()[:10]...))
	head.requireGuards(t)
	tail.requireGuards(t)
}

// testUDTooLong: what exceeds the limit is refused at once, by an error that names the limit, and nothing is sent.
func testUDTooLong(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	limit := int(a.qp.Cap().PathMTU)
	in := b.recvSpan(1, limit+1)
	out := a.span(limit + 1)
	short := out.sge()
	short.Length = 3
	for _, n := range []int{limit + 1, limit + 1, 1 << 16} {
		sge := verbs.SGE{Addr: out.addr(), Length: uint32(n), LKey: a.mr.LKey()}
		k, err := a.qp.PostSend([]verbs.SendWR{
			d.to(verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{sge}, Flags: verbs.Signaled}),
			d.to(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{short}, Flags: verbs.Signaled}),
		})
		require.Zero(t, k)
		require.ErrorIs(t, err, syscall.EMSGSIZE)
		require.Contains(t, err.Error(), strconv.Itoa(limit))
	}
	a.quiet()
	b.quiet()
	// Those before it go.
	k, err := a.qp.PostSend([]verbs.SendWR{
		d.to(verbs.SendWR{ID: 1, Op: verbs.OpSend, SGL: []verbs.SGE{short}, Flags: verbs.Signaled}),
		d.to(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: out.sgl(), Flags: verbs.Signaled}),
	})
	require.Equal(t, 1, k)
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	a.waitID(1, verbs.Success)
	b.arrived(1, in, out.bytes()[:3])
}

func testUDTrafficClass(s *suite, t *testing.T) {
	l := s.listenUD(t)
	b := s.bound(t)
	id := s.resolveUD(t, s.Active, verbs.CMIDAttr{Remote: netip.AddrPortFrom(s.Dial, l.Addr().Port()), TrafficClass: 0x68})
	a := s.udEnd(t, id)
	found := startLookup(s.ctx(t), a.ud, nil)
	require.NoError(t, s.requestUD(t, l).Reply(b.qp.Num(), 0, nil))
	p, err := found()
	require.NoError(t, err)
	require.EqualValues(t, 0x68, p.AH.TrafficClass)
	for _, hops := range []uint8{0, 7, 255} {
		p.AH.HopLimit = hops
		in := b.recvSpan(1, 1)
		a.send(a.dest(p).to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte{9}}))
		_, g := b.arrived(1, in, []byte{9})
		require.EqualValues(t, 0x68, g.TrafficClass)
		if hops == 0 || s.RoutedHopLimit {
			hops = 64
		}
		require.Equal(t, hops, g.HopLimit)
	}
}

// testUDBatch posts many at once, most of them unsignaled: they arrive in order, of two lengths and to two queue pairs.
func testUDBatch(s *suite, t *testing.T) {
	a, b, d := s.udPair(t, func(o *options) { o.init.MaxSendWR, o.init.MaxRecvWR, o.mem = 256, 256, 1<<18 })
	const n = 200
	var in [n]span
	for i := range in {
		in[i] = b.recvSpan(uint64(i), 64)
	}
	out := a.span(n * 64).fill(3)
	var wrs []verbs.SendWR
	length := func(i int) int { return 64 - i/50*20 }
	for i := range n {
		wr := d.to(verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, SGL: []verbs.SGE{{
			Addr: out.addr() + uint64(i*64), Length: uint32(length(i)), LKey: a.mr.LKey(),
		}}})
		if i%7 == 0 {
			wr.Op, wr.Imm = verbs.OpSendWithImm, uint32(i)
		}
		if i%5 == 0 {
			wr.Flags = verbs.Solicited
		}
		if i == n/2 || i == n-1 {
			wr.Flags |= verbs.Signaled
		}
		wrs = append(wrs, wr)
	}
	a.send(wrs...)
	a.waitID(n/2, verbs.Success)
	a.waitID(n-1, verbs.Success)
	sent := make(map[string]int, n)
	for i := range n {
		sent[string(out.bytes()[i*64:i*64+length(i)])] = i
	}
	require.Len(t, sent, n)
	for at := range in {
		wc := b.waitID(uint64(at), verbs.Success)
		require.Equal(t, verbs.WCRecv, wc.Op)
		require.LessOrEqual(t, wc.ByteLen, uint32(verbs.GRHLen+64))
		got := string(in[at].bytes()[verbs.GRHLen:max(wc.ByteLen, verbs.GRHLen)])
		i, ok := sent[got]
		require.True(t, ok, "arrival %d, %d bytes: not sent, or for the second time", at, len(got))
		delete(sent, got)
		if !s.Overtakes {
			require.Equal(t, at, i, "overtaken")
		}
		in[at].requireGuards(t)
		require.Equal(t, i%7 == 0, wc.Flags&verbs.WCWithImm != 0)
		if i%7 == 0 {
			require.EqualValues(t, i, wc.Imm)
		}
	}
	a.quiet()
	b.quiet()
}

// testUDQKey: a datagram with a wrong Q_Key is dropped in silence. One with the high bit set has that of the sender's queue
// pair (IBTA 10.2.5).
func testUDQKey(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	for _, key := range []uint32{0, 1, verbs.UDPQKey + 1} {
		wrong := d
		wrong.qkey = key
		a.send(wrong.to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte("wrong")}))
		a.goes(d, b)
	}
	if !s.NoQKeyRule {
		own := d
		own.qkey = 1<<31 | 77
		a.goes(own, b)
	}
	wrong := d
	wrong.qpn ^= 1 // nobody's, or another's with no receive
	in := b.recvSpan(3, 8)
	a.send(wrong.to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte("nobody")}))
	b.quiet()
	a.passes(d, b, 3, in, 8)
}

// testUDNoReceive: what meets no receive is dropped and does no harm.
func testUDNoReceive(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	for i := range 5 {
		a.send(d.to(verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Inline: []byte("early"), Flags: verbs.Signaled}))
		a.waitID(uint64(i), verbs.Success)
	}
	b.quiet()
	if !s.UncountedDrops {
		require.Eventually(t, func() bool { return b.qp.Stats().Dropped == 5 }, s.Timeout, time.Millisecond)
	}
	a.goes(d, b)
}

// testUDShortReceive: what meets a receive that is too small is dropped, and the receive waits for the next one.
func testUDShortReceive(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	short := b.grhSpan(8)
	b.recv(verbs.RecvWR{ID: 1, SGL: short.sgl()})
	a.send(d.to(verbs.SendWR{Op: verbs.OpSend, Inline: make([]byte, 9)}))
	if s.ShortReceiveFatal {
		require.NotEqual(t, verbs.Success, b.wait(1)[0].Status)
		return
	}
	b.quiet()
	short.requireGuards(t)
	a.passes(d, b, 1, short, 8)
	// Not even a GRH.
	none := b.span(verbs.GRHLen - 1)
	b.recv(verbs.RecvWR{ID: 2, SGL: none.sgl()})
	a.send(d.to(verbs.SendWR{Op: verbs.OpSend}))
	b.quiet()
	none.requireUntouched(t)
	if !s.UncountedDrops {
		require.EqualValues(t, 2, b.qp.Stats().Dropped)
	}
}

// testUDManySenders: several look one queue pair up and send to it; its completions tell them apart.
func testUDManySenders(s *suite, t *testing.T) {
	const senders, each = 4, 12
	l := s.listenUD(t)
	b := s.bound(t)
	var in [senders * each]span
	for i := range in {
		in[i] = b.recvSpan(uint64(i), 8)
	}
	got := make(map[uint32]int)
	for i := range senders {
		a := s.udEnd(t, s.activeUD(t, l.Addr().Port()))
		found := startLookup(s.ctx(t), a.ud, []byte{byte(i)})
		req := s.requestUD(t, l)
		require.Equal(t, byte(i), req.Request().PrivateData[0])
		require.NoError(t, req.Reply(b.qp.Num(), 0, nil))
		require.NoError(t, req.Close())
		p, err := found()
		require.NoError(t, err)
		d := a.dest(p)
		got[a.qp.Num()] = 0
		for j := range each {
			a.send(d.to(verbs.SendWR{ID: uint64(j), Op: verbs.OpSendWithImm, Imm: a.qp.Num(), Inline: []byte{1}, Flags: verbs.Signaled}))
			a.waitID(uint64(j), verbs.Success)
		}
	}
	for range in {
		wc := b.wait(1)[0]
		require.Equal(t, wc.Imm, wc.SrcQPN)
		got[wc.SrcQPN]++
	}
	require.Len(t, got, senders)
	for _, n := range got {
		require.Equal(t, each, n)
	}
	b.quiet()
}

// sender is the way back to where a datagram came from.
func (e *udEnd) sender(wc verbs.WC, g verbs.GRH) dest {
	e.t.Helper()
	local := e.id.LocalAddr().Addr()
	remote := g.Source
	if remote.IsLinkLocalUnicast() {
		remote = remote.WithZone(local.Zone())
	}
	return e.dest(&verbs.UDParam{AH: verbs.AHAttr{Local: local, Remote: remote}, QPN: wc.SrcQPN, QKey: verbs.UDPQKey})
}

// testUDReply answers datagrams without having looked anybody up.
func testUDReply(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	in := b.recvSpan(1, 8)
	a.send(d.to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte("question")}))
	wc, g := b.arrived(1, in, []byte("question"))
	b.goes(b.sender(wc, g), a)
}

// testUDWrongRequests posts what no datagram can be.
func testUDWrongRequests(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	other := s.bound(t)
	foreign := other.dest(&verbs.UDParam{AH: verbs.AHAttr{Local: s.Dial, Remote: s.Dial}, QPN: b.qp.Num(), QKey: verbs.UDPQKey})
	good := d.to(verbs.SendWR{Op: verbs.OpSend, Inline: []byte{1}})
	for name, change := range map[string]func(wr *verbs.SendWR){
		"no address handle":     func(wr *verbs.SendWR) { wr.AH = nil },
		"another domain's":      func(wr *verbs.SendWR) { wr.AH = foreign.ah },
		"WRITE":                 func(wr *verbs.SendWR) { wr.Op = verbs.OpWrite },
		"READ":                  func(wr *verbs.SendWR) { wr.Op, wr.Inline = verbs.OpRead, nil },
		"atomic":                func(wr *verbs.SendWR) { wr.Op, wr.Inline = verbs.OpFetchAdd, nil },
		"queue pair 0":          func(wr *verbs.SendWR) { wr.RemoteQPN = 0 },
		"number of 25 bits":     func(wr *verbs.SendWR) { wr.RemoteQPN = 1 << 24 },
		"group at an address":   func(wr *verbs.SendWR) { wr.RemoteQPN = verbs.MulticastQPN },
		"too many SGEs":         func(wr *verbs.SendWR) { wr.Inline, wr.SGL = nil, make([]verbs.SGE, 1000) },
		"too many inline bytes": func(wr *verbs.SendWR) { wr.Inline = make([]byte, a.qp.Cap().MaxInline+1) },
	} {
		wr := good
		change(&wr)
		n, err := a.qp.PostSend([]verbs.SendWR{wr})
		require.Zero(t, n, name)
		require.Error(t, err, name)
	}
	for _, attr := range []verbs.AHAttr{
		{}, {Remote: netip.IPv4Unspecified()}, {Local: s.Dial, Remote: s.Dial, Port: 99},
	} {
		_, err := a.pd.CreateAH(&attr)
		require.Error(t, err, "%+v", attr)
	}
	a.quiet()

	for name, call := range map[string]func() error{
		"Connect": func() error { _, err := a.id.Connect(s.ctx(t), &verbs.ConnParam{}); return err },
		"Accept":  func() error { return a.id.Accept(&verbs.ConnParam{}) },
		"Reply":   func() error { return a.ud.Reply(a.qp.Num(), 0, nil) },
		"Reject":  func() error { return a.id.Reject(nil) },
		"CreateQP of connections": func() error {
			_, err := s.resolveUD(t, s.Active, verbs.CMIDAttr{Remote: netip.AddrPortFrom(s.Dial, 1)}).CreateQP(a.pd, &verbs.QPInitAttr{
				Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.cq,
			})
			return err
		},
		"Lookup without an address": func() error { _, err := b.ud.Lookup(s.ctx(t), nil); return err },
	} {
		require.ErrorIs(t, call(), syscall.EINVAL, name)
	}
	a.goes(d, b)
}

// testUDBadKey: a wrong key or range fails the request, as with connections.
func testUDBadKey(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	sge := a.span(8).sge()
	sge.LKey ^= 0x5a5a00
	in := b.recvSpan(1, 8)
	a.send(
		d.to(verbs.SendWR{ID: 1, Op: verbs.OpSend, Inline: []byte{1}, Flags: verbs.Signaled}),
		d.to(verbs.SendWR{ID: 2, Op: verbs.OpSend, SGL: []verbs.SGE{sge}}),
		d.to(verbs.SendWR{ID: 3, Op: verbs.OpSend, Inline: []byte{1}, Flags: verbs.Signaled}),
	)
	wcs := a.wait(3)
	require.Equal(t, verbs.Success, wcs[0].Status)
	require.EqualValues(t, 2, wcs[1].ID)
	require.Contains(t, s.LocalErrors, wcs[1].Status)
	require.Equal(t, verbs.WRFlushErr, wcs[2].Status)
	b.arrived(1, in, []byte{1})
}

// testUDErrorState: what is outstanding is flushed, and so is what follows.
func testUDErrorState(s *suite, t *testing.T) {
	a, b, d := s.udPair(t)
	b.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	require.NoError(t, b.qp.ToError())
	b.waitID(1, verbs.WRFlushErr)
	b.waitID(2, verbs.WRFlushErr)
	a.send(d.to(verbs.SendWR{ID: 3, Op: verbs.OpSend, Inline: []byte{1}, Flags: verbs.Signaled}))
	a.waitID(3, verbs.Success)
	require.NoError(t, a.id.Disconnect())
	a.send(d.to(verbs.SendWR{ID: 4, Op: verbs.OpSend, Inline: []byte{1}}))
	a.waitID(4, verbs.WRFlushErr)
	b.quiet()
}

func testUDBusy(s *suite, t *testing.T) {
	a, _, d := s.udPair(t)
	require.NoError(t, a.qp.Close())
	require.NoError(t, a.mr.Close())
	require.NoError(t, a.arena.Close())
	require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy, "PD of an address handle")
	require.NoError(t, d.ah.Close())
	require.NoError(t, a.pd.Close())
}

func testUDCloseInAnyOrder(s *suite, t *testing.T) {
	permutations(4, func(order []int) {
		a, b, d := s.udPair(t)
		a.goes(d, b)
		things := []interface{ Close() error }{a.qp, a.id, d.ah, b.qp}
		for _, i := range order {
			require.NoError(t, things[i].Close())
		}
		_, err := a.qp.PostSend([]verbs.SendWR{d.to(verbs.SendWR{Op: verbs.OpSend})})
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// testUDNoAllocations sends and receives without allocating for a datagram.
func testUDNoAllocations(s *suite, t *testing.T) {
	x := s.steady(t)
	a, b, d := s.udPair(t)
	send := []verbs.SendWR{d.to(verbs.SendWR{Op: verbs.OpSend, SGL: a.span(64).sgl(), Flags: verbs.Signaled})}
	recv := []verbs.RecvWR{{SGL: b.grhSpan(64).sgl()}}
	x.require(t, 2, func() {
		x.posted(b.qp.PostRecv(recv))
		x.posted(a.qp.PostSend(send))
		x.take(a.cq, 1)
		x.take(b.cq, 1)
	})
}
