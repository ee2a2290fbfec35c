package rpma_test

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/rpma"
)

// record is what a device was asked for.
type record struct {
	mu    sync.Mutex
	pairs []verbs.QPInitAttr
	conns []verbs.ConnParam
	sends []verbs.SendWR
	recvs []verbs.RecvWR
}

// take returns what was recorded, and forgets it.
func (r *record) take() (pairs []verbs.QPInitAttr, conns []verbs.ConnParam, sends []verbs.SendWR, recvs []verbs.RecvWR) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pairs, conns, sends, recvs = r.pairs, r.conns, r.sends, r.recvs
	r.pairs, r.conns, r.sends, r.recvs = nil, nil, nil, nil
	return pairs, conns, sends, recvs
}

// recorder is softroce, whose consumers are listened to.
type recorder struct {
	*softroce.Provider
	*record
}

func (p recorder) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	id, err := p.Provider.Resolve(ctx, attr)
	if err != nil {
		return nil, err
	}
	return recordedID{id, p.record}, nil
}

func (p recorder) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	l, err := p.Provider.Listen(ctx, attr)
	return recordedListener{l, p.record}, err
}

type recordedListener struct {
	verbs.Listener
	*record
}

func (l recordedListener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	id, err := l.Listener.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	return recordedID{id, l.record}, nil
}

type recordedID struct {
	verbs.CMID
	*record
}

func (i recordedID) CreateQP(pd verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	i.mu.Lock()
	i.pairs = append(i.pairs, *attr)
	i.mu.Unlock()
	qp, err := i.CMID.CreateQP(pd, attr)
	if err != nil {
		return nil, err
	}
	return recordedQP{qp, i.record}, nil
}

func (i recordedID) said(p *verbs.ConnParam) {
	i.mu.Lock()
	i.conns = append(i.conns, *p)
	i.mu.Unlock()
}

func (i recordedID) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	i.said(p)
	return i.CMID.Connect(ctx, p)
}

func (i recordedID) Accept(p *verbs.ConnParam) error {
	i.said(p)
	return i.CMID.Accept(p)
}

type recordedQP struct {
	verbs.QP
	*record
}

func (q recordedQP) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	for _, wr := range wrs { // its memory is used again
		wr.SGL, wr.Inline = slices.Clone(wr.SGL), slices.Clone(wr.Inline)
		q.sends = append(q.sends, wr)
	}
	q.mu.Unlock()
	return q.QP.PostSend(wrs)
}

func (q recordedQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	q.mu.Lock()
	for _, wr := range wrs {
		wr.SGL = slices.Clone(wr.SGL)
		q.recvs = append(q.recvs, wr)
	}
	q.mu.Unlock()
	return q.QP.PostRecv(wrs)
}

// recording lets the test listen to the embedded device.
func recording(t *testing.T) *record {
	if local != "127.0.0.1" || onShm {
		t.Skip("it is about what the embedded device is asked for")
	}
	r := new(record)
	t.Cleanup(cm.Replace(&cm.Manager{Providers: []verbs.Provider{recorder{softroce.Default(), r}}}))
	return r
}

// TestAttributes: queue pairs are made, and connections asked for and granted, as librpma does, but for a place for keep-alives.
func TestAttributes(t *testing.T) {
	r := recording(t)
	p := newPeer(t)
	own, err := p.NewSRQ(nil)
	require.NoError(t, err)
	defer own.Close()
	without, err := p.NewSRQ(&rpma.SRQConfig{RCQSize: -1})
	require.NoError(t, err)
	defer without.Close()
	for name, x := range map[string]struct {
		cfg      *rpma.ConnConfig
		sq, rq   int
		srq, far bool // receives are shared; they complete elsewhere
	}{
		"defaults":                       {nil, 10, 10, false, false},
		"sizes":                          {&rpma.ConnConfig{CQSize: 50, RCQSize: 20, SQSize: 30, RQSize: 40}, 30, 40, false, false},
		"none":                           {&rpma.ConnConfig{SQSize: -1, RQSize: -1}, 0, 1, false, false},
		"shared channel":                 {&rpma.ConnConfig{SharedChannel: true, RCQSize: 3}, 10, 10, false, false},
		"shared receive queue":           {&rpma.ConnConfig{SRQ: own}, 10, 10, true, true},
		"shared receive queue, one less": {&rpma.ConnConfig{SRQ: without, RCQSize: 3}, 10, 10, true, false},
	} {
		r.take()
		c, s := pair(t, p, p, pairOptions{client: x.cfg, server: x.cfg, clientData: []byte("c"), serverData: []byte("s")})
		pairs, conns, _, _ := r.take()
		require.Len(t, pairs, 2, name)
		for _, a := range pairs {
			assert.Equal(t, x.srq, a.SRQ != nil, name)
			assert.Equal(t, x.far, a.SendCQ != a.RecvCQ, name)
			a.SendCQ, a.RecvCQ, a.SRQ = nil, nil, nil
			assert.Equal(t, verbs.QPInitAttr{
				Type: verbs.RC, MaxSendWR: x.sq + 1, MaxRecvWR: x.rq, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8, MinRNRTimer: 12,
			}, a, name)
		}
		want := verbs.ConnParam{ResponderResources: 255, InitiatorDepth: 255, FlowControl: true, RetryCount: 7, RNRRetryCount: 7}
		asked, granted := want, want
		asked.PrivateData, granted.PrivateData = []byte("c"), []byte("s")
		assert.Equal(t, []verbs.ConnParam{asked, granted}, conns, name)
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}
}

// TestRequests: what each operation is to the device.
func TestRequests(t *testing.T) {
	const use = 0xff &^ rpma.FlushPersistent
	at := func(m *rpma.MR, off int) (addr uint64, key uint32) { // as the descriptor says
		b, err := m.MarshalBinary()
		require.NoError(t, err)
		return binary.LittleEndian.Uint64(b) + uint64(off), binary.LittleEndian.Uint32(b[16:])
	}
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		r := recording(t)
		p, q := newPeer(t), newPeer(t)
		c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native, SQSize: 100}, server: &rpma.ConnConfig{RQSize: 100}})
		own, far := alloc(t, p, 64, use), alloc(t, q, 64, use)
		in := remote(t, far)
		key := func(m *rpma.MR) uint32 { _, k := at(m, 0); return k }
		va := func(m *rpma.MR, off int) uint64 { a, _ := at(m, off); return a }
		sge := func(off, n int) []verbs.SGE { // softroce's regions have one key
			return []verbs.SGE{{Addr: va(own, off), Length: uint32(n), LKey: key(own)}}
		}
		value := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
		for name, x := range map[string]struct {
			op   rpma.Op
			want verbs.SendWR
		}{
			"read":                 {rpma.Read(own.Slice(8, 20), in.Slice(3, 20)), verbs.SendWR{Op: verbs.OpRead, SGL: sge(8, 20), RemoteAddr: va(far, 3), RKey: key(far)}},
			"read of nothing":      {rpma.Read(rpma.Local{}, rpma.Remote{}), verbs.SendWR{Op: verbs.OpRead}},
			"write":                {rpma.Write(in.Slice(3, 20), own.Slice(8, 20)), verbs.SendWR{Op: verbs.OpWrite, SGL: sge(8, 20), RemoteAddr: va(far, 3), RKey: key(far)}},
			"write of nothing":     {rpma.Write(rpma.Remote{}, rpma.Local{}), verbs.SendWR{Op: verbs.OpWrite}},
			"write with immediate": {rpma.WriteImm(in.Slice(0, 1), own.Slice(63, 1), 7), verbs.SendWR{Op: verbs.OpWriteWithImm, SGL: sge(63, 1), RemoteAddr: va(far, 0), RKey: key(far), Imm: 7}},
			"an immediate alone":   {rpma.WriteImm(rpma.Remote{}, rpma.Local{}, 0xfffffffe), verbs.SendWR{Op: verbs.OpWriteWithImm, Imm: 0xfffffffe}},
			"send":                 {rpma.Send(own.Slice(0, 64)), verbs.SendWR{Op: verbs.OpSend, SGL: sge(0, 64)}},
			"send of nothing":      {rpma.Send(rpma.Local{}), verbs.SendWR{Op: verbs.OpSend}},
			"send with immediate":  {rpma.SendImm(own.Slice(1, 2), 9), verbs.SendWR{Op: verbs.OpSendWithImm, SGL: sge(1, 2), Imm: 9}},
			"atomic write": {rpma.AtomicWrite(in.Slice(56, 8), value), map[rpma.NativeOps]verbs.SendWR{
				rpma.NativeAlways: {Op: verbs.OpAtomicWrite, Inline: value[:], RemoteAddr: va(far, 56), RKey: key(far)},
				rpma.NativeNever:  {Op: verbs.OpWrite, Flags: verbs.Fence, Inline: value[:], RemoteAddr: va(far, 56), RKey: key(far)},
			}[native]},
			"flush": {rpma.Flush(in.Slice(3, 20), rpma.Visibility), map[rpma.NativeOps]verbs.SendWR{
				rpma.NativeAlways: {Op: verbs.OpFlush, RemoteAddr: va(far, 3), RKey: key(far), FlushType: verbs.FlushGlobal, FlushLength: 20},
				rpma.NativeNever:  {Op: verbs.OpRead, RemoteAddr: va(far, 3), RKey: key(far)},
			}[native]},
			"flush of the end": {rpma.Flush(in.Slice(63, 1), rpma.Visibility), map[rpma.NativeOps]verbs.SendWR{
				rpma.NativeAlways: {Op: verbs.OpFlush, RemoteAddr: va(far, 63), RKey: key(far), FlushType: verbs.FlushGlobal, FlushLength: 1},
				rpma.NativeNever:  {Op: verbs.OpRead, RemoteAddr: va(far, 56), RKey: key(far)},
			}[native]},
		} {
			for _, f := range []rpma.Flags{rpma.CompletionOnError, rpma.CompletionAlways} {
				require.NoError(t, s.PostRecv(far.Slice(0, 64), 1)) // some need one
				r.take()
				op := x.op
				op.Flags = f
				_, err := c.Post(op)
				require.NoError(t, err, name)
				_, _, sends, _ := r.take()
				require.Len(t, sends, 1, name)
				got, want := sends[0], x.want
				if f == rpma.CompletionAlways {
					want.Flags |= verbs.Signaled
				}
				if want.Op == verbs.OpRead && want.SGL == nil && want.RKey != 0 { // into memory that nobody looks at
					require.Len(t, got.SGL, 1, name)
					assert.EqualValues(t, 8, got.SGL[0].Length, name)
					assert.NotEqual(t, key(own), got.SGL[0].LKey, name)
					got.SGL = nil
				}
				got.ID = 0 // its place in the queue
				assert.Equal(t, want, got, name)
				require.NoError(t, c.Do(t.Context(), rpma.Write(rpma.Remote{}, rpma.Local{})), "%s: all is well", name)
				if f == rpma.CompletionAlways {
					done := next(t, c.CQ())
					require.NoError(t, done.Err(), name)
				}
			}
		}
		r.take()
		n, err := c.PostRecvs(rpma.Recv{Dst: own.Slice(4, 60), ID: 5}, rpma.Recv{ID: 6})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		_, _, _, recvs := r.take()
		require.Len(t, recvs, 2)
		assert.Equal(t, sge(4, 60), recvs[0].SGL)
		assert.Empty(t, recvs[1].SGL)
	})
}
