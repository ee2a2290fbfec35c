//go:build cgo

package rdmacore

import (
	"context"
	"debug/elf"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestStartsAnywhere: this program needs neither library to start, and exports nothing that
// could take the place of a function in them.
func TestStartsAnywhere(t *testing.T) {
	f, err := elf.Open(os.Args[0])
	require.NoError(t, err)
	defer f.Close()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	for _, l := range libs {
		assert.NotContains(t, l, "ibverbs")
		assert.NotContains(t, l, "rdmacm")
	}
	dynamic, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range dynamic {
		assert.False(t, strings.HasPrefix(s.Name, "ibv_") || strings.HasPrefix(s.Name, "_ibv_") || strings.HasPrefix(s.Name, "rdma_"), s.Name)
	}
	all, err := f.Symbols()
	if err != nil {
		return // stripped
	}
	hidden := 0
	for _, s := range all {
		if strings.HasPrefix(s.Name, "ibv_") || strings.HasPrefix(s.Name, "rdma_") {
			hidden++
			assert.Equal(t, elf.STV_HIDDEN, elf.ST_VISIBILITY(s.Other), s.Name)
			assert.NotEqual(t, elf.SHN_UNDEF, s.Section, s.Name)
		}
	}
	if why, _ := coreLoad(); why != noHeaders {
		assert.Greater(t, hidden, 40)
	}
}

func TestLoadErrors(t *testing.T) {
	require.NoError(t, loadError(0, ""))
	for why, want := range map[int]string{
		noHeaders:    "apt-get install libibverbs-dev librdmacm-dev, then build again with go build -a",
		noLibibverbs: "the words: apt-get install libibverbs1 ibverbs-providers librdmacm1",
		noLibrdmacm:  "the words: apt-get install librdmacm1",
		noSymbol:     "too old, it lacks the words: upgrade",
	} {
		require.ErrorContains(t, loadError(why, "the words"), want)
	}
}

// TestSlots: places come free with a completion at or behind them, and IDs come back.
func TestSlots(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 16, 100} {
		var s slots
		s.init(kindSend, limit)
		s.setBase(77, 5)
		s.posted = 1<<24 - 40 // the place wraps around on the way
		s.done.Store(s.posted)
		user := uint64(1000)
		var out []uint64 // IDs that the driver has
		first := user
		for round := range 200 {
			for n := 0; s.room() > 0 && n < 1+round%7; n++ {
				out = append(out, s.put(user))
				require.EqualValues(t, 77, out[len(out)-1]>>indexShift&indexMask)
				user++
			}
			require.LessOrEqual(t, len(out), limit)
			if round%3 == 0 && len(out) > 1 {
				out = out[:len(out)-1] // the driver did not take the last one
				s.back(1)
				user--
			}
			k := (round % 5) % len(out) // signaled: it and those before it are done
			require.Equal(t, first+uint64(k), s.free(out[k]))
			first += uint64(k) + 1
			out = out[k+1:]
			require.Equal(t, limit-len(out), s.room())
		}
	}
}

// TestTable: numbers are found, and not by those who had them before.
func TestTable(t *testing.T) {
	var tab table
	q := &qp{}
	q.sq.init(kindSend, 4)
	q.rq.init(kindRecv, 4)
	require.True(t, tab.add(q))
	id := q.sq.put(9)
	require.Same(t, q, tab.find(id))
	require.Same(t, q, tab.find(q.rq.put(9)))
	tab.remove(q)
	require.Nil(t, tab.find(id))
	seen := map[uint32]bool{q.index: true}
	for range 5000 {
		r := &qp{}
		r.sq.init(kindSend, 1)
		require.True(t, tab.add(r))
		seen[r.index] = true
		require.Nil(t, tab.find(id), "its number has another owner, or none")
		require.Same(t, r, tab.find(r.sq.put(1)))
		tab.remove(r)
	}
	require.Less(t, len(seen), 3000, "numbers are used again")
	require.Nil(t, tab.find(kindSend|indexMask<<indexShift))
}

// TestCheckSend: requests that are wrong on their face never reach the driver.
func TestCheckSend(t *testing.T) {
	d := &device{name: "fake0", maxMsg: 1 << 20}
	q := &qp{dev: d, typ: verbs.RC, caps: verbs.QPCap{MaxSendSGE: 2, MaxInline: 16}}
	sge := func(n uint32) []verbs.SGE { return []verbs.SGE{{Length: n}} }
	for what, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"send":           {verbs.SendWR{Op: verbs.OpSend, SGL: sge(1 << 20)}, nil},
		"too long":       {verbs.SendWR{Op: verbs.OpSend, SGL: sge(1<<20 + 1)}, syscall.EMSGSIZE},
		"inline":         {verbs.SendWR{Op: verbs.OpWrite, Inline: make([]byte, 16)}, nil},
		"inline long":    {verbs.SendWR{Op: verbs.OpWrite, Inline: make([]byte, 17)}, syscall.EINVAL},
		"entries":        {verbs.SendWR{Op: verbs.OpSend, SGL: make([]verbs.SGE, 3)}, syscall.EINVAL},
		"READ unwanted":  {verbs.SendWR{Op: verbs.OpRead, SGL: sge(8)}, syscall.EINVAL},
		"no atomics":     {verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(8)}, errors.ErrUnsupported},
		"opcode 0":       {verbs.SendWR{}, errors.ErrUnsupported},
		"unknown opcode": {verbs.SendWR{Op: 200}, errors.ErrUnsupported},
		"FLUSH":          {verbs.SendWR{Op: verbs.OpFlush}, errors.ErrUnsupported},
	} {
		if err := q.checkSend(&c.wr); c.want == nil {
			require.NoError(t, err, what)
		} else {
			require.ErrorIs(t, err, c.want, what)
		}
	}
	d.attr.atomics, q.readDepth = true, 1
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpRead}))
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(8)}))
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(7)}), syscall.EINVAL)
}

// TestIWARP: what such devices have not is refused by us, since drivers give no good reason.
func TestIWARP(t *testing.T) {
	q := &qp{dev: &device{name: "iw0", iwarp: true, maxMsg: 1 << 20}, typ: verbs.RC, caps: verbs.QPCap{MaxInline: 16}}
	for _, op := range []verbs.Opcode{verbs.OpSendWithImm, verbs.OpWriteWithImm, verbs.OpFetchAdd} {
		require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: op}), errors.ErrUnsupported)
	}
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpWrite, Inline: []byte{1}}))
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpSend, Inline: []byte{1}}))
}

// TestPostToLostDevice: nothing reaches the driver, which may not notice.
func TestPostToLostDevice(t *testing.T) {
	d := &device{name: "fake0"}
	q := &qp{dev: d, typ: verbs.RC, h: new(coreQP), state: stateRTS}
	s := &srq{pd: &pd{dev: d}, h: new(coreSRQ)}
	d.gone.Store(true)
	n, err := q.PostSend(make([]verbs.SendWR, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.ENODEV)
	n, err = q.PostRecv(make([]verbs.RecvWR, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.ENODEV)
	n, err = s.PostRecv(make([]verbs.RecvWR, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.ENODEV)
}

// TestReceivers: the failure of a shared queue is that of its queue pairs, and of no other.
func TestReceivers(t *testing.T) {
	s, other := new(srq), new(srq)
	a, b, c, own := &qp{srq: s}, &qp{srq: other}, &qp{srq: s}, &qp{}
	d := &device{qps: map[uint64]*qp{1: a, 2: b, 3: c, 4: own}}
	require.ElementsMatch(t, []*qp{a, c}, d.receivers(s))
	require.Empty(t, d.receivers(nil))
}

// TestAHPort: a port that the device does not have is refused and not cut to eight bits.
func TestAHPort(t *testing.T) {
	p := &pd{dev: &device{name: "fake0", attr: attrs{ports: 2}}}
	for _, port := range []int{-1, 3, 257} {
		_, err := p.CreateAH(&verbs.AHAttr{Port: port})
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "device fake0 has 2")
	}
}

// TestQueueBytes: the hint at RLIMIT_MEMLOCK has a need to speak of.
func TestQueueBytes(t *testing.T) {
	in := qpInit{sendWR: 10, sendSGE: 2, recvWR: 4, recvSGE: 1}
	require.Equal(t, 10*64+4*16, in.bytes())
	in.inlineBytes, in.srq = 100, new(coreSRQ)
	require.Equal(t, 10*132, in.bytes())
}

// TestZone: an address whose interface is missing or unknown is refused with a reason, before anything is opened.
func TestZone(t *testing.T) {
	for addr, want := range map[string]string{
		"fe80::1":           "link-local address fe80::1 without its interface (fe80::1%eth0)",
		"fe80::1%no-such-0": "zone of fe80::1%no-such-0: ",
	} {
		a := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
		p := New(&Config{Root: fakeRoot(t, twoDevices)})
		p.whyNot = func() error { return nil }
		_, err := p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: a})
		require.ErrorContains(t, err, want)
		_, err = p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Local: a, Remote: netip.MustParseAddrPort("[2001:db8::1]:80")})
		require.ErrorContains(t, err, want)
		_, err = p.Listen(context.Background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: a})
		require.ErrorContains(t, err, want)
	}
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	for zone, want := range map[string]uint32{"lo": uint32(lo.Index), "12345": 12345} {
		n, err := zoneIndex(zone)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}

// TestParam: what goes out with a request tells of a shared receive queue.
func TestParam(t *testing.T) {
	p := &verbs.ConnParam{PrivateData: []byte("hello"), ResponderResources: 1, InitiatorDepth: 2, RetryCount: 3, RNRRetryCount: 4}
	c := toParam(p, &qp{num: 5})
	require.Equal(t, []int{1, 2, 3, 4, 5, 5, 0}, []int{
		int(c.responder_resources), int(c.initiator_depth), int(c.retry_count), int(c.rnr_retry_count),
		int(c.qpn), int(c.private_len), int(c.srq),
	})
	c = toParam(p, &qp{srq: new(srq)})
	require.EqualValues(t, 1, c.srq)
}

// TestTranslate: completions get the consumer's IDs back, those of closed queue pairs vanish, and the failures of
// others are found by what the driver was given and not by a number that may be used again.
func TestTranslate(t *testing.T) {
	d := &device{nums: make(map[uint32]*qp), srqs: make(map[uint64]*srq)}
	add := func() *qp {
		q := &qp{dev: d, num: 7}
		q.sq.init(kindSend, 4)
		q.rq.init(kindRecv, 4)
		require.True(t, d.table.add(q))
		d.nums[q.num] = q
		return q
	}
	closed, old, now := add(), add(), add() // of one number, the last one's by now
	wcs := []verbs.WC{
		{ID: closed.sq.put(1), QPN: 7, Status: verbs.WRFlushErr},
		{ID: old.sq.put(2), QPN: 7, Status: verbs.RetryExcErr},
		{ID: old.rq.put(3), QPN: 7, Status: verbs.WRFlushErr},
		{ID: now.rq.put(4), QPN: 7},
	}
	d.table.remove(closed)
	n, failed := d.translate(wcs)
	require.Equal(t, 3, n)
	require.Equal(t, []uint64{2, 3, 4}, []uint64{wcs[0].ID, wcs[1].ID, wcs[2].ID})
	require.Equal(t, []*qp{old}, failed)

	old.failed.Store(true)
	wcs = []verbs.WC{{ID: old.sq.put(5), QPN: 7, Status: verbs.WRFlushErr}}
	n, failed = d.translate(wcs)
	require.Equal(t, 1, n)
	require.Empty(t, failed, "it is known")

	s := &srq{token: 99, ids: make([]uint64, 2), bufs: make([]buffer, 2), avail: []uint32{1, 0}}
	d.srqs[s.token] = s
	wcs = []verbs.WC{{ID: s.put(&verbs.RecvWR{ID: 6}), QPN: 7, Status: verbs.WRFlushErr}, {ID: kindSRQ | 98<<genShift, QPN: 7}}
	n, failed = d.translate(wcs)
	require.Equal(t, 1, n)
	require.EqualValues(t, 6, wcs[0].ID)
	require.Equal(t, []*qp{now}, failed)
	require.Len(t, s.avail, 2)
}

// asyncKinds has every asynchronous event of libibverbs, by its number (enum ibv_event_type), and what it comes to.
// What that does to connections is for the tests in a guest: TestAsyncEvents.
var asyncKinds = []struct {
	name string
	kind int
}{
	{"CQ_ERR", asyncCQ},
	{"QP_FATAL", asyncQP},
	{"QP_REQ_ERR", asyncQP},
	{"QP_ACCESS_ERR", asyncQP},
	{"COMM_EST", asyncCommEst},
	{"SQ_DRAINED", asyncNone},
	{"PATH_MIG", asyncNone},
	{"PATH_MIG_ERR", asyncQP},
	{"DEVICE_FATAL", asyncDevice},
	{"PORT_ACTIVE", asyncPort},
	{"PORT_ERR", asyncPort},
	{"LID_CHANGE", asyncPort},
	{"PKEY_CHANGE", asyncNone},
	{"SM_CHANGE", asyncNone},
	{"SRQ_ERR", asyncSRQ},
	{"SRQ_LIMIT_REACHED", asyncSRQLimit},
	{"QP_LAST_WQE_REACHED", asyncNone},
	{"CLIENT_REREGISTER", asyncNone},
	{"GID_CHANGE", asyncPort},
	{"WQ_FATAL", asyncNone},
	{"of a later library", asyncNone},
}

func TestAsyncKinds(t *testing.T) {
	if why, _ := coreLoad(); why == noHeaders {
		require.Equal(t, asyncNone, coreAsyncKind(0))
		return
	}
	for event, want := range asyncKinds {
		require.Equal(t, want.kind, coreAsyncKind(event), want.name)
	}
}
