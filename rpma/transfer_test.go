package rpma_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rpma"
)

const (
	clientUse = rpma.ReadDst | rpma.WriteSrc | rpma.SendBuf | rpma.RecvBuf
	serverUse = rpma.ReadSrc | rpma.WriteDst | rpma.FlushVisibility | rpma.SendBuf | rpma.RecvBuf
)

// natives runs a test with both ways of flushes and atomic writes.
func natives(t *testing.T, f func(t *testing.T, native rpma.NativeOps)) {
	d, err := rpma.LookupLocal(local)
	require.NoError(t, err)
	if d.NativeFlush {
		t.Run("native", func(t *testing.T) { f(t, rpma.NativeAlways) })
	}
	t.Run("emulated", func(t *testing.T) { f(t, rpma.NativeNever) })
}

func TestDo(t *testing.T) {
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		require.Equal(t, native == rpma.NativeAlways, c.Native())
		own, far := alloc(t, p, 4096, clientUse), alloc(t, q, 4096, serverUse)
		r := remote(t, far)
		ctx := t.Context()

		copy(own.Bytes(), "written")
		require.NoError(t, c.Do(ctx,
			rpma.Write(r.Slice(100, 7), own.Slice(0, 7)),
			rpma.Flush(r.Slice(100, 7), rpma.Visibility),
			rpma.AtomicWrite(r.Slice(8, 8), [8]byte{1, 2, 3, 4, 5, 6, 7, 8}),
			rpma.Flush(r.Slice(4095, 1), rpma.Visibility),
		))
		assert.Equal(t, "written", string(far.Bytes()[100:107]))
		assert.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, far.Bytes()[8:16])
		require.NoError(t, c.Do(ctx, rpma.Read(own.Slice(1000, 20), r.Slice(95, 20))))
		assert.Equal(t, "\x00\x00\x00\x00\x00written\x00\x00\x00\x00\x00\x00\x00\x00", string(own.Bytes()[1000:1020]))

		msg := alloc(t, q, 64, rpma.RecvBuf)
		require.NoError(t, s.PostRecv(msg.Slice(0, 64), 77))
		copy(own.Bytes(), "hello")
		require.NoError(t, c.Do(ctx, rpma.SendImm(own.Slice(0, 5), 0x01020304)))
		got := next(t, s.CQ())
		assert.Equal(t, rpma.Completion{ID: 77, Op: rpma.OpRecv, Bytes: 5, Imm: 0x01020304, HasImm: true, QPNum: s.QPNum()}, public(got))
		assert.Equal(t, "hello", string(msg.Bytes()[:5]))
	})
}

// public is a completion without what this package keeps for itself.
func public(c rpma.Completion) rpma.Completion {
	return rpma.Completion{ID: c.ID, Status: c.Status, Op: c.Op, Bytes: c.Bytes, Imm: c.Imm, HasImm: c.HasImm, QPNum: c.QPNum}
}

// TestPost: operations complete in their order, once each, as their flags say.
func TestPost(t *testing.T) {
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		own, far := alloc(t, p, 4096, clientUse), alloc(t, q, 4096, serverUse)
		r := remote(t, far)
		in := alloc(t, q, 100, rpma.RecvBuf)
		require.NoError(t, s.PostRecv(in.Slice(0, 100), 1))
		require.NoError(t, s.PostRecv(rpma.Local{}, 2))
		require.NoError(t, s.PostRecv(rpma.Local{}, 3))
		with := func(op rpma.Op, id uint64, f rpma.Flags) rpma.Op {
			op.ID, op.Flags = id, f
			return op
		}
		n, err := c.Post(
			with(rpma.Write(r.Slice(0, 8), own.Slice(0, 8)), 10, rpma.CompletionOnError),
			with(rpma.Flush(r.Slice(0, 8), rpma.Visibility), 11, rpma.CompletionAlways),
			with(rpma.AtomicWrite(r.Slice(8, 8), [8]byte{9}), 12, rpma.CompletionAlways),
			with(rpma.Read(own.Slice(100, 16), r.Slice(0, 16)), 13, rpma.CompletionAlways),
			with(rpma.Send(own.Slice(0, 50)), 14, rpma.CompletionAlways),
			with(rpma.SendImm(rpma.Local{}, 5), 15, rpma.CompletionOnError),
			with(rpma.WriteImm(r.Slice(20, 3), own.Slice(0, 3), 0xfffffffe), 16, rpma.CompletionAlways),
			with(rpma.Write(rpma.Remote{}, rpma.Local{}), 17, rpma.CompletionAlways),
			with(rpma.Read(rpma.Local{}, rpma.Remote{}), 18, rpma.CompletionAlways),
		)
		require.NoError(t, err)
		require.Equal(t, 9, n)
		for _, want := range []rpma.Completion{
			{ID: 11, Op: rpma.OpFlush, Bytes: 8}, {ID: 12, Op: rpma.OpAtomicWrite, Bytes: 8}, {ID: 13, Op: rpma.OpRead, Bytes: 16},
			{ID: 14, Op: rpma.OpSend, Bytes: 50}, {ID: 16, Op: rpma.OpWrite, Bytes: 3}, {ID: 17, Op: rpma.OpWrite}, {ID: 18, Op: rpma.OpRead},
		} {
			got := next(t, c.CQ())
			want.QPNum = c.QPNum()
			require.NoError(t, got.Err())
			require.Equal(t, want, public(got))
		}
		for _, want := range []rpma.Completion{
			{ID: 1, Op: rpma.OpRecv, Bytes: 50}, {ID: 2, Op: rpma.OpRecv, Imm: 5, HasImm: true},
			{ID: 3, Op: rpma.OpRecvWithImm, Bytes: 3, Imm: 0xfffffffe, HasImm: true},
		} {
			want.QPNum = s.QPNum()
			require.Equal(t, want, public(next(t, s.CQ())))
		}
		assert.Equal(t, byte(9), own.Bytes()[108])
	})
}

// TestFlushAnywhere: an emulated flush reads no byte beyond the region, however short that is.
func TestFlushAnywhere(t *testing.T) {
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, _ := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		for size := 1; size < 20; size++ {
			m := alloc(t, q, size, rpma.FlushVisibility) // READ is not among its uses
			for off := 0; off <= size; off++ {
				require.NoError(t, c.Do(t.Context(), rpma.Flush(remote(t, m).Slice(uint64(off), size-off), rpma.Visibility)), "%d of %d", off, size)
			}
		}
	})
}

// TestUnsignaled: operations that nobody is told of do not fill the queue for good.
func TestUnsignaled(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 10} {
		p, q := newPeer(t), newPeer(t)
		c, _ := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: depth}})
		own, far := alloc(t, p, 8, clientUse), alloc(t, q, 8, serverUse)
		op := rpma.Write(remote(t, far).Slice(0, 8), own.Slice(0, 8))
		op.Flags = rpma.CompletionOnError
		for done := 0; done < 200; {
			n, err := c.Post(op, op, op)
			done += n
			if err != nil {
				require.ErrorIs(t, err, rpma.ErrQueueFull)
				require.Less(t, n, 3)
			}
		}
		require.NoError(t, c.Do(t.Context(), op, op, op, op, op, op, op, op, op, op, op, op))
		n, err := c.CQ().Poll(make([]rpma.Completion, 1))
		require.NoError(t, err)
		require.Zero(t, n, "nobody asked")
	}
}

// TestQueueFull: what is to be polled keeps its place until it is, and Do passes by.
func TestQueueFull(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: 4, RQSize: 2}})
	own, far := alloc(t, p, 8, clientUse), alloc(t, q, 8, serverUse)
	op := rpma.Write(remote(t, far).Slice(0, 8), own.Slice(0, 8))
	n, err := c.Post(op, op, op, op, op, op)
	require.ErrorIs(t, err, rpma.ErrQueueFull)
	require.Equal(t, 4, n)
	require.NoError(t, c.Do(t.Context(), op, op, op, op, op))
	n, err = c.Post(op)
	require.ErrorIs(t, err, rpma.ErrQueueFull)
	require.Zero(t, n)
	wc := make([]rpma.Completion, 8)
	n, err = c.CQ().Poll(wc[:3])
	require.NoError(t, err)
	require.Equal(t, 3, n)
	n, err = c.Post(op, op, op, op)
	require.ErrorIs(t, err, rpma.ErrQueueFull)
	require.Equal(t, 3, n)
	for range 4 {
		require.NoError(t, new(rpma.Completion).Err())
		c := next(t, c.CQ())
		require.NoError(t, c.Err())
	}

	require.NoError(t, c.PostRecv(rpma.Local{}, 1))
	require.NoError(t, c.PostRecv(rpma.Local{}, 2))
	require.ErrorIs(t, c.PostRecv(rpma.Local{}, 3), rpma.ErrQueueFull)
	require.NoError(t, s.Do(t.Context(), rpma.Send(rpma.Local{})))
	require.Equal(t, uint64(1), next(t, c.CQ()).ID)
	require.NoError(t, c.PostRecv(rpma.Local{}, 3))
	require.ErrorIs(t, c.PostRecv(rpma.Local{}, 4), rpma.ErrQueueFull)
}

// TestParts: Do divides what is too long for one operation, and Post refuses it.
func TestParts(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	rpma.SetMaxOp(p, 100)
	c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: 3}})
	own, far := alloc(t, p, 1000, clientUse), alloc(t, q, 1000, serverUse)
	r := remote(t, far)
	for i := range own.Bytes() {
		own.Bytes()[i] = byte(i + i/256)
	}
	require.NoError(t, c.Do(t.Context(), rpma.Write(r.Slice(1, 777), own.Slice(2, 777))))
	require.Equal(t, own.Bytes()[2:779], far.Bytes()[1:778])
	require.Zero(t, far.Bytes()[778])
	clear(far.Bytes())
	require.NoError(t, s.PostRecv(rpma.Local{}, 1))
	require.NoError(t, c.Do(t.Context(), rpma.WriteImm(r.Slice(0, 1000), own.Slice(0, 1000), 4)))
	require.Equal(t, own.Bytes(), far.Bytes())
	got := next(t, s.CQ())
	require.Equal(t, uint32(4), got.Imm, "once, with the last part")
	clear(own.Bytes())
	require.NoError(t, c.Do(t.Context(), rpma.Read(own.Slice(5, 201), r.Slice(7, 201))))
	require.Equal(t, far.Bytes()[7:208], own.Bytes()[5:206])
	require.Zero(t, own.Bytes()[206])
	for _, op := range []rpma.Op{rpma.Write(r.Slice(0, 101), own.Slice(0, 101)), rpma.Send(own.Slice(0, 101))} {
		_, err := c.Post(op)
		require.ErrorIs(t, err, rpma.ErrInvalid)
		require.ErrorIs(t, err, syscall.EMSGSIZE)
	}
	require.ErrorIs(t, c.Do(t.Context(), rpma.Send(own.Slice(0, 101))), syscall.EMSGSIZE, "a message is one")
}

// TestReceiveQueues: receives complete where the configuration says.
func TestReceiveQueues(t *testing.T) {
	for name, x := range map[string]struct {
		srq              *rpma.SRQConfig
		rcq              int
		shared           bool
		inSRQ, inRCQ     bool
		refused, hasSRCQ bool
	}{
		"main":                                    {},
		"its own":                                 {rcq: 4, inRCQ: true},
		"its own, shared channel":                 {rcq: 4, shared: true, inRCQ: true},
		"main, shared channel":                    {shared: true},
		"shared queue's":                          {srq: &rpma.SRQConfig{}, inSRQ: true, hasSRCQ: true},
		"shared queue's, whatever the other":      {srq: &rpma.SRQConfig{}, rcq: 4, inSRQ: true, hasSRCQ: true},
		"shared queue without, main":              {srq: &rpma.SRQConfig{RCQSize: -1}},
		"shared queue without, its own":           {srq: &rpma.SRQConfig{RCQSize: -1}, rcq: 4, inRCQ: true},
		"shared queue without, shared channel":    {srq: &rpma.SRQConfig{RCQSize: -1}, rcq: 4, shared: true, inRCQ: true},
		"shared queue's and shared channel: none": {srq: &rpma.SRQConfig{}, shared: true, refused: true, hasSRCQ: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := newPeer(t), newPeer(t)
			cfg := &rpma.ConnConfig{RCQSize: x.rcq, SharedChannel: x.shared}
			if x.srq != nil {
				srq, err := q.NewSRQ(x.srq)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, srq.Close()) })
				require.Equal(t, x.hasSRCQ, srq.CQ() != nil)
				cfg.SRQ = srq
			}
			if x.refused {
				_, err := q.NewConnReq(t.Context(), local+":1", cfg)
				require.ErrorIs(t, err, rpma.ErrInvalid)
				return
			}
			in, out := alloc(t, q, 10, rpma.RecvBuf), alloc(t, p, 10, rpma.SendBuf)
			c, s := pair(t, p, q, pairOptions{server: cfg, before: func(_, sr *rpma.ConnReq) {
				if cfg.SRQ != nil {
					assert.ErrorIs(t, sr.PostRecv(in.Slice(0, 10), 1), rpma.ErrProvider)
					assert.NoError(t, cfg.SRQ.PostRecv(in.Slice(0, 10), 5))
					return
				}
				assert.NoError(t, sr.PostRecv(in.Slice(0, 10), 5))
			}})
			require.Equal(t, x.inRCQ, s.RecvCQ() != nil)
			copy(out.Bytes(), "abc")
			require.NoError(t, c.Do(t.Context(), rpma.SendImm(out.Slice(0, 3), 1)))
			where := s.CQ()
			switch {
			case x.inSRQ:
				where = cfg.SRQ.CQ()
			case x.inRCQ:
				where = s.RecvCQ()
			}
			if x.shared {
				require.ErrorIs(t, where.Wait(t.Context()), rpma.ErrSharedChannel)
				cq, recv, err := s.Wait(t.Context())
				require.NoError(t, err)
				require.Same(t, where, cq)
				require.Equal(t, x.inRCQ, recv)
			} else {
				_, _, err := s.Wait(t.Context())
				require.ErrorIs(t, err, rpma.ErrNotSharedChannel)
				require.NoError(t, where.Wait(t.Context()))
			}
			wc := make([]rpma.Completion, 2)
			n, err := where.Poll(wc)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, rpma.Completion{ID: 5, Op: rpma.OpRecv, Bytes: 3, Imm: 1, HasImm: true, QPNum: s.QPNum()}, public(wc[0]))
			require.Equal(t, "abc", string(in.Bytes()[:3]))

			// Sends complete in the main one.
			require.NoError(t, c.PostRecv(rpma.Local{}, 9))
			_, err = s.Post(rpma.Send(rpma.Local{}))
			require.NoError(t, err)
			if x.shared {
				cq, recv, err := s.Wait(t.Context())
				require.NoError(t, err)
				require.Same(t, s.CQ(), cq)
				require.False(t, recv)
				_, err = cq.Poll(wc)
				require.NoError(t, err)
			} else {
				require.Equal(t, rpma.OpSend, next(t, s.CQ()).Op)
			}
			// A queue closes after those who use it.
			if cfg.SRQ != nil {
				require.ErrorIs(t, cfg.SRQ.Close(), syscall.EBUSY)
				require.NoError(t, cfg.SRQ.PostRecv(rpma.Local{}, 6))
				require.NoError(t, s.Close())
			}
		})
	}
}

// TestSharedReceives: messages of several connections are told apart by the number of the queue pair.
func TestSharedReceives(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	srq, err := q.NewSRQ(&rpma.SRQConfig{RQSize: 3})
	require.NoError(t, err)
	defer srq.Close()
	in := alloc(t, q, 24, rpma.RecvBuf)
	for i := range 3 {
		require.NoError(t, srq.PostRecv(in.Slice(8*i, 8), uint64(i)))
	}
	require.ErrorIs(t, srq.PostRecv(in.Slice(0, 8), 3), rpma.ErrQueueFull)
	_, err = p.NewConnReq(t.Context(), local+":1", &rpma.ConnConfig{SRQ: srq})
	require.ErrorIs(t, err, rpma.ErrInvalid, "of another peer")
	var clients, servers []*rpma.Conn
	for range 3 {
		c, s := pair(t, p, q, pairOptions{server: &rpma.ConnConfig{SRQ: srq}})
		clients, servers = append(clients, c), append(servers, s)
	}
	out := alloc(t, p, 8, rpma.SendBuf)
	for round := range 20 {
		for i, c := range clients {
			out.Bytes()[0] = byte(10*round + i)
			require.NoError(t, c.Do(t.Context(), rpma.Send(out.Slice(0, 8))))
			got := next(t, srq.CQ())
			require.Equal(t, servers[i].QPNum(), got.QPNum)
			require.Equal(t, byte(10*round+i), in.Bytes()[8*got.ID])
			require.NoError(t, srq.PostRecv(in.Slice(int(8*got.ID), 8), got.ID))
		}
	}
	// What a connection has taken and not told is not lost with it.
	for _, s := range servers {
		require.NoError(t, s.Close())
	}
	require.NoError(t, srq.Close())
	require.ErrorIs(t, srq.PostRecv(in.Slice(0, 8), 0), rpma.ErrProvider)
	_, err = srq.CQ().Poll(make([]rpma.Completion, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, srq.CQ().Wait(t.Context()), rpma.ErrNoCompletion)
}

// TestAllocations: neither Do nor a round of Post and Poll allocates.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector pools lose what they hold")
	}
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		own, far := alloc(t, p, 4096, clientUse), alloc(t, q, 4096, serverUse)
		r := remote(t, far)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		wc := make([]rpma.Completion, 4)
		var err error
		keep := func(_ int, e error) {
			if err == nil {
				err = e
			}
		}
		take := func(q *rpma.CQ, want int) {
			for got := 0; got < want && err == nil; {
				n, e := q.Poll(wc)
				got += n
				if keep(n, e); n == 0 {
					keep(0, q.Wait(ctx))
				}
			}
		}
		for name, f := range map[string]func(){
			"do": func() {
				keep(0, c.Do(ctx, rpma.Write(r.Slice(0, 8), own.Slice(0, 8)), rpma.Flush(r.Slice(0, 8), rpma.Visibility),
					rpma.AtomicWrite(r.Slice(8, 8), [8]byte{}), rpma.Read(own.Slice(0, 2000), r.Slice(0, 2000))))
			},
			"post": func() {
				keep(c.Post(rpma.Write(r.Slice(0, 8), own.Slice(0, 8)), rpma.Flush(r.Slice(0, 8), rpma.Visibility), rpma.Read(own.Slice(0, 2000), r.Slice(0, 2000))))
				take(c.CQ(), 3)
			},
			"send": func() {
				keep(0, s.PostRecv(far.Slice(0, 100), 1))
				keep(c.Post(rpma.Send(own.Slice(0, 50))))
				take(s.CQ(), 1)
				take(c.CQ(), 1)
			},
		} {
			for range 100 {
				f() // queues and pools grow to what is needed
			}
			n := testing.AllocsPerRun(200, f)
			for i := 0; i < 4 && n >= 1; i++ { // the whole process's are counted, of what other tests have left to be closed, too
				n = min(n, testing.AllocsPerRun(200, f))
			}
			require.NoError(t, err)
			assert.Less(t, n, 1.0, name)
		}
	})
}
