package softroce

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

func TestAThousandQueuePairs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		net, a, b := pair(t, 1, simnet.Options{Delay: 50 * time.Microsecond, Loss: 0.01})
		const n = 1000
		var wg sync.WaitGroup
		numbers := map[uint32]bool{}
		for i := range n {
			wake := make(chan bool, 1)
			x, y := connected(a, b, link{notifyA: func() { wake <- true }})
			numbers[x.q.Num()] = true
			require.EqualValues(t, 5, x.q.Num()>>16, "the slot")
			off := 1000 * i
			copy(a.mem[off:], pattern(uint64(i), 1000))
			wg.Go(func() {
				y.recv(verbs.RecvWR{})
				require.NoError(t, x.cq.Arm())
				to := b.mr.Addr() + uint64(off)
				x.send(
					verbs.SendWR{Op: verbs.OpWrite, SGL: a.sgl(off, 300), RemoteAddr: to, RKey: b.mr.RKey()},
					verbs.SendWR{Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: uint32(i), SGL: a.sgl(off+300, 700), RemoteAddr: to + 300, RKey: b.mr.RKey()},
				)
				<-wake
				require.Equal(t, []outcome{{0, 0}}, x.outcomes())
				wc := y.completions()
				require.Len(t, wc, 1)
				require.EqualValues(t, i, wc[0].Imm)
			})
		}
		start := time.Now()
		wg.Wait()
		require.Len(t, numbers, n)
		require.Equal(t, a.mem[:1000*n], b.mem[:1000*n])
		t.Logf("%v simulated, %d packets, %d lost, %d retransmitted", time.Since(start), net.Stats().Sent, net.Stats().Lost, a.dev.stats.retransmits.Load())
	})
}

// TestConcurrentPosts posts from many goroutines to both ends of a connection.
func TestConcurrentPosts(t *testing.T) {
	_, a, b := pair(t, 3, simnet.Options{Loss: 0.01, Reorder: 0.01})
	const posters, each = 8, 500
	wakeA, wakeB := make(chan struct{}, 1), make(chan struct{}, 1)
	ring := func(c chan struct{}) func() {
		return func() {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	x, y := connected(a, b, link{depth: 4096, attr: verbs.QPInitAttr{MaxSendWR: 64, MaxRecvWR: 256}, notifyA: ring(wakeA), notifyB: ring(wakeB)})
	run := func(e, other *end, wake chan struct{}) error {
		var wg sync.WaitGroup
		var failure atomic.Pointer[error]
		fail := func(err error) { failure.CompareAndSwap(nil, &err) }
		recv := make([]verbs.RecvWR, 1)
		for range 200 {
			if _, err := e.q.PostRecv(recv); err != nil {
				return err
			}
		}
		room := make(chan bool, 1)
		for p := range posters {
			wg.Go(func() {
				for i := 0; i < each; {
					n, err := e.q.PostSend([]verbs.SendWR{{
						ID: uint64(p*each + i), Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: uint32(p*each + i),
						SGL: e.sgl(p*1000, 100+i), RemoteAddr: other.mr.Addr() + nodeMem/2 + uint64(p*1000), RKey: other.mr.RKey(),
					}})
					if err != nil {
						fail(err)
						return
					}
					if i += n; n == 0 {
						<-room
					}
				}
			})
		}
		sent, got := map[uint64]int{}, map[uint32]int{}
		lastOf := [posters]int{}
		for len(sent) < posters*each || len(got) < posters*each {
			var wc [16]verbs.WC
			n, err := e.cq.Poll(wc[:])
			if err != nil {
				return err
			}
			for _, c := range wc[:n] {
				if c.Status != 0 {
					return c.Status
				}
				if c.Op == verbs.WCWrite {
					sent[c.ID]++
					continue
				}
				got[c.Imm]++
				p, i := int(c.Imm)/each, int(c.Imm)%each
				if i < lastOf[p] {
					return errors.New("a poster's messages changed their order")
				}
				lastOf[p] = i
				if _, err := e.q.PostRecv(recv); err != nil {
					return err
				}
			}
			select {
			case room <- true:
			default:
			}
			if n == 0 {
				if err := e.cq.Arm(); err != nil {
					return err
				}
				if n, _ := e.cq.Poll(wc[:0]); n == 0 {
					select {
					case <-wake:
					case <-time.After(time.Millisecond):
					}
				}
			}
		}
		close(room)
		wg.Wait()
		for _, n := range sent {
			if n != 1 {
				return errors.New("a request completed more than once")
			}
		}
		for _, n := range got {
			if n != 1 {
				return errors.New("a message arrived more than once")
			}
		}
		if p := failure.Load(); p != nil {
			return *p
		}
		return nil
	}
	var wg sync.WaitGroup
	var errA, errB error
	wg.Go(func() { errA = run(x, y, wakeA) })
	wg.Go(func() { errB = run(y, x, wakeB) })
	wg.Wait()
	require.NoError(t, errA)
	require.NoError(t, errB)
	t.Logf("retransmitted %d and %d", x.q.Stats().Retransmits, y.q.Stats().Retransmits)
}

// TestCloseUnderFire closes queue pairs while packets arrive and requests are posted.
func TestCloseUnderFire(t *testing.T) {
	_, a, b := pair(t, 1, simnet.Options{})
	for i := range 200 {
		x, y := connected(a, b, link{attr: verbs.QPInitAttr{MaxSendWR: 1000, MaxRecvWR: 1000}, depth: 3000})
		var wg sync.WaitGroup
		for _, e := range []*end{x, y} {
			wg.Go(func() {
				for range 100 {
					_, _ = e.q.PostRecv(make([]verbs.RecvWR, 3))
					_, err := e.q.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled}})
					if errors.Is(err, net.ErrClosed) {
						return
					}
					var wc [4]verbs.WC
					_, _ = e.cq.Poll(wc[:])
				}
			})
		}
		if i%2 == 0 {
			wg.Go(func() { _ = y.q.ToError() })
		}
		wg.Go(func() { _ = x.q.Close() })
		wg.Wait()
		require.NoError(t, y.q.Close())
	}
}

func TestDeviceLivesAsLongAsAnythingOnIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		closed := 0
		host := simnet.New(1, simnet.Options{}).Host(addrA)
		dev, err := newDevice(&Config{Open: host.Open}, 3)
		require.NoError(t, err)
		dev.onClosed = func() { closed++ }
		dev.start()
		p, err := dev.AllocPD()
		require.NoError(t, err)
		cq, err := dev.CreateCQ(&verbs.CQAttr{Depth: 8})
		require.NoError(t, err)
		q, err := dev.newQP(p.(*pd), &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
		require.NoError(t, err)
		dev.retain()
		require.NoError(t, dev.Close())
		require.ErrorIs(t, p.Close(), verbs.ErrBusy)
		require.ErrorIs(t, cq.Close(), verbs.ErrBusy)
		require.NoError(t, q.Close())
		require.NoError(t, p.Close())
		require.NoError(t, cq.Close())
		require.Zero(t, closed)
		dev.release()
		require.Equal(t, 1, closed)
		_, err = dev.AllocPD()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = dev.CreateCQ(&verbs.CQAttr{Depth: 8})
		require.ErrorIs(t, err, net.ErrClosed)
		dev.HandlePackets(nil)
	})
}

func TestQueuePairAttributes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b := pair(t, 1, simnet.Options{})
		e, other := a.newEnd(verbs.QPInitAttr{}, 10, nil), b.newEnd(verbs.QPInitAttr{}, 10, nil)
		caps := e.q.Cap()
		require.Equal(t, verbs.QPCap{
			MaxSendWR: defaultWR, MaxRecvWR: defaultWR, MaxSendSGE: defaultSGE, MaxRecvSGE: defaultSGE, MaxInline: maxInline,
		}, caps)
		refs := a.dev.refs.Load()
		bad := func(f func(*verbs.QPInitAttr)) error {
			attr := verbs.QPInitAttr{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq}
			f(&attr)
			_, err := a.dev.newQP(a.pd, &attr)
			return err
		}
		require.True(t, isUnsupported(bad(func(a *verbs.QPInitAttr) { a.Type = verbs.UD })))
		for _, f := range []func(*verbs.QPInitAttr){
			func(a *verbs.QPInitAttr) { a.SendCQ = nil },
			func(a *verbs.QPInitAttr) { a.RecvCQ = other.cq },
			func(a *verbs.QPInitAttr) { a.MaxSendWR = maxWR + 1 },
			func(a *verbs.QPInitAttr) { a.MaxRecvWR = -1 },
			func(a *verbs.QPInitAttr) { a.MaxSendSGE = maxSGE + 1 },
			func(a *verbs.QPInitAttr) { a.MaxRecvSGE = maxSGE + 1 },
		} {
			require.ErrorIs(t, bad(f), syscall.EINVAL)
		}
		require.Equal(t, refs, a.dev.refs.Load())

		at := rcAttr{path: newPath(addrA, addrB), destQPN: 1, mtu: 1024}
		for _, f := range []func(*rcAttr){
			func(a *rcAttr) { a.path = nil },
			func(a *rcAttr) { a.mtu = 1500 },
			func(a *rcAttr) { a.destQPN = 1 << 24 },
			func(a *rcAttr) { a.sqPSN = 1 << 24 },
			func(a *rcAttr) { a.ackTimeout = 32 },
			func(a *rcAttr) { a.retryCount = 8 },
		} {
			w := at
			f(&w)
			require.ErrorIs(t, e.q.connect(&w), syscall.EINVAL)
		}
		require.NoError(t, e.q.connect(&at))
		require.EqualValues(t, 1024, e.q.Cap().PathMTU)
		require.ErrorIs(t, e.q.connect(&at), syscall.EISCONN)
		require.NoError(t, other.q.ToError())
		require.Error(t, other.q.connect(&at))
	})
}

func TestManagementDatagrams(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPeer(t, link{})
		var got []string
		p.end.dev.onMAD = func(_ *netioPacket, mad []byte) { got = append(got, string(mad)) }
		var foreign []uint32
		p.end.dev.onForeign = func(_ *netioPacket, qpn uint32) { foreign = append(foreign, qpn) }
		mad := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: wire.QPNGSI, AckReq: true}, DETH: wire.DETH{QKey: wire.QKeyGSI}, Payload: []byte("mad!")}
		p.send(mad)
		bad := mad
		bad.QKey++
		p.send(bad)
		bad = mad
		bad.Opcode = wire.UDSendOnlyImm
		p.send(bad)
		bad = mad
		bad.PKey = 0x7FFE
		p.send(bad)
		require.Equal(t, []string{"mad!"}, got)
		s := &p.end.dev.stats
		require.Equal(t, [3]uint64{1, 1, 1}, [3]uint64{s.wrongQKey.Load(), s.wrongType.Load(), s.wrongPKey.Load()})
		h := packet(wire.RCSendOnly, 0, nil)
		h.DestQP = 6<<16 | 99
		p.send(h)
		require.Equal(t, []uint32{6<<16 | 99}, foreign)

		require.NoError(t, p.end.dev.sendMAD(newPath(addrA, addrB), []byte("hello")))
		out := p.take()
		require.Len(t, out, 1)
		require.Equal(t, wire.UDSendOnly, out[0].Opcode)
		require.Equal(t, "hello", string(out[0].Payload))
		require.False(t, out[0].AckReq)
		require.Equal(t, [4]uint32{wire.QPNGSI, wire.QPNGSI, wire.QKeyGSI, 0xFFFF},
			[4]uint32{out[0].DestQP, out[0].SrcQP, out[0].QKey, uint32(out[0].PKey)})
	})
}
