package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var deviceTests = []test{
	{"List", testDevices},
	{"OpenUnknown", testOpenUnknown},
	{"Identifier", testIdentifier},
	{"Regions", testRegions},
	{"BadAttributes", testBadAttributes},
}

// testDevices opens every usable device that the providers list.
func testDevices(s *suite, t *testing.T) {
	for _, p := range []verbs.Provider{s.Active, s.Passive} {
		require.NotEmpty(t, p.Name())
		infos, err := p.Devices()
		require.NoError(t, err)
		require.NotEmpty(t, infos)
		for _, info := range infos {
			require.NotEmpty(t, info.Name)
			require.Equal(t, p.Name(), info.Provider)
			if info.Unusable != nil {
				require.NotEmpty(t, info.Unusable.Error())
				continue
			}
			dev, err := p.Open(info.Name)
			require.NoError(t, err, info.Name)
			again, err := p.Open(info.Name)
			require.NoError(t, err, "second Open of %s", info.Name)
			require.NoError(t, dev.Close())

			// The second Open still holds it.
			got := again.Info()
			require.Equal(t, info.Name, got.Name)
			require.Equal(t, info.Name, again.Name())
			require.Positive(t, got.MaxQP)
			require.Positive(t, got.MaxCQE)
			require.Positive(t, got.MaxQPWR)
			require.Positive(t, got.MaxSGE)
			require.Positive(t, got.MaxMsgSize)
			require.NotEmpty(t, got.Ports)
			for _, port := range got.Ports {
				require.NotZero(t, port.MTU.Code(), "MTU %d", port.MTU)
			}
			dup, err := again.Dup()
			require.NoError(t, err)
			require.True(t, dup == again, "what Dup returns is the device") //nolint:testifylint // identity
			require.NoError(t, again.Close())
			again = dup
			pd, err := again.AllocPD()
			require.NoError(t, err)
			// What was made of a device outlives its Close.
			require.NoError(t, again.Close())
			arena, err := pd.NewArena(1 << 16)
			require.NoError(t, err)
			require.Len(t, arena.Bytes(), 1<<16)
			require.NoError(t, arena.Close())
			require.NoError(t, pd.Close())
		}
	}
}

func testOpenUnknown(s *suite, t *testing.T) {
	_, err := s.Active.Open("no such device")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.Contains(t, err.Error(), "no such device")

	attr := s.resolveAttr(1, nil)
	attr.Device = "no such device"
	_, err = s.Active.Resolve(s.ctx(t), attr)
	require.ErrorIs(t, err, verbs.ErrNoDevice)

	lattr := s.listenAttr(0)
	lattr.Device = "no such device"
	_, err = s.Passive.Listen(s.ctx(t), lattr)
	require.ErrorIs(t, err, verbs.ErrNoDevice)
}

// testIdentifier checks the addresses and handles of two connected identifiers.
func testIdentifier(s *suite, t *testing.T) {
	l := s.listen(t)
	require.Equal(t, s.Listen, l.Addr().Addr())
	require.NotZero(t, l.Addr().Port())
	a, b := s.connect(t, l, s.options(nil), s.options(nil))

	require.Equal(t, s.Active.Name(), a.id.Provider().Name())
	require.Equal(t, s.Passive.Name(), b.id.Provider().Name())
	require.NotNil(t, a.id.Device())
	require.NotNil(t, b.id.Device())
	require.Equal(t, s.Dial, a.id.RemoteAddr().Addr())
	require.Equal(t, l.Addr().Port(), a.id.RemoteAddr().Port())
	require.True(t, a.id.LocalAddr().Addr().IsValid())
	require.NotZero(t, a.id.LocalAddr().Port())
	require.Equal(t, s.Dial, b.id.LocalAddr().Addr())
	require.Equal(t, l.Addr().Port(), b.id.LocalAddr().Port())
	require.Equal(t, a.id.LocalAddr(), b.id.RemoteAddr())
	require.Nil(t, a.id.Request())
	require.NotNil(t, b.id.Request())

	for _, e := range []*end{a, b} {
		c := e.qp.Cap()
		require.NotZero(t, c.PathMTU.Code(), "PathMTU %d", c.PathMTU)
		require.GreaterOrEqual(t, c.MaxSendWR, 64)
		require.GreaterOrEqual(t, c.MaxRecvWR, 64)
		require.GreaterOrEqual(t, c.MaxSendSGE, 4)
		require.GreaterOrEqual(t, c.MaxRecvSGE, 4)
		require.NotZero(t, e.qp.Num())
	}
	require.Equal(t, a.qp.Cap().PathMTU, b.qp.Cap().PathMTU)
}

// testRegions registers overlapping ranges of one arena.
func testRegions(s *suite, t *testing.T) {
	a, b := s.pair(t)
	mem := b.arena.Bytes()
	one := register(t, b.pd, mem[100:200], verbs.LocalWrite|verbs.RemoteWrite)
	two := register(t, b.pd, mem[150:300], verbs.LocalWrite|verbs.RemoteWrite)
	require.Len(t, one.Bytes(), 100)
	require.Same(t, &mem[100], &one.Bytes()[0])
	require.NotEqual(t, one.RKey(), two.RKey())

	// Through each the same memory is reached, under the region's own addresses.
	src := a.span(10)
	for i, mr := range []verbs.MR{one, two} {
		src.fill(uint64(i))
		clear(mem[150:160])
		at := mr.Addr()
		if i == 0 {
			at += 50
		}
		a.send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: at, RKey: mr.RKey()})
		a.waitID(1, verbs.Success)
		a.ping2(b)
		require.Equal(t, src.bytes(), mem[150:160])
	}
	// Closing one leaves the other.
	require.NoError(t, one.Close())
	src.fill(7)
	a.send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: src.sgl(), RemoteAddr: two.Addr(), RKey: two.RKey()})
	a.waitID(2, verbs.Success)
	a.ping2(b)
	require.Equal(t, src.bytes(), mem[150:160])
}

// testBadAttributes asks for what cannot be.
func testBadAttributes(s *suite, t *testing.T) {
	a := s.active(t, s.listen(t).Addr().Port(), s.options(nil))
	dev := a.id.Device()
	info := dev.Info()
	for _, depth := range []int{0, -1, info.MaxCQE + 1} {
		_, err := dev.CreateCQ(&verbs.CQAttr{Depth: depth})
		require.Error(t, err, "depth %d", depth)
	}
	for _, size := range []int{0, -4096, 100} {
		_, err := a.pd.NewArena(size)
		require.Error(t, err, "arena of %d bytes", size)
	}
	_, err := a.pd.RegMR(make([]byte, 100)[:0], verbs.LocalWrite)
	require.Error(t, err, "empty region")

	for what, change := range map[string]func(*verbs.QPInitAttr){
		"MaxSendWR":  func(q *verbs.QPInitAttr) { q.MaxSendWR = info.MaxQPWR + 1 },
		"MaxRecvWR":  func(q *verbs.QPInitAttr) { q.MaxRecvWR = info.MaxQPWR + 1 },
		"MaxSendSGE": func(q *verbs.QPInitAttr) { q.MaxSendSGE = info.MaxSGE + 1 },
		"MaxRecvSGE": func(q *verbs.QPInitAttr) { q.MaxRecvSGE = info.MaxSGE + 1 },
		"MaxInline":  func(q *verbs.QPInitAttr) { q.MaxInline = info.MaxInline + 1 },
		"negative":   func(q *verbs.QPInitAttr) { q.MaxSendWR = -1 },
		"no CQ":      func(q *verbs.QPInitAttr) { q.SendCQ = nil },
	} {
		if what == "MaxInline" && info.MaxInline == 0 {
			continue // known only of a queue pair, and then not refused
		}
		id := s.resolve(t, s.listen(t).Addr().Port(), nil)
		attr := s.options(nil).init
		attr.SendCQ, attr.RecvCQ = a.cq, a.cq
		change(&attr)
		_, err := id.CreateQP(a.pd, &attr)
		require.Error(t, err, what)
	}
}
