package rc

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

const (
	lossSlots  = 64
	lossSlot   = 16 << 10
	lossDepth  = 16 // requests outstanding
	lossRecvs  = 20
	lossHeader = 8
)

// lossEnd is one end of a connection on a simulated network. It writes messages into its
// peer's slots, in turn, and checks those it gets.
type lossEnd struct {
	t      *testing.T
	c      *Conn
	out    Block
	in     Block
	mr     verbs.MR
	peer   struct{ addr, key uint64 }
	sender *Side

	mu       sync.Mutex
	q        SendQueue[uint32]
	done     uint32
	received uint32
	failed   verbs.Status
	noted    uint32 // messages received when the end came
}

func newLossEnd(t *testing.T, id verbs.CMID) *lossEnd {
	e := &lossEnd{t: t}
	var err error
	e.c, err = New(id, &Config{Handler: e, SendWR: lossDepth, RecvWR: lossRecvs, Inline: 64, MinRNRTimer: 1})
	require.NoError(t, err)
	e.q.Init(e.c.QP(), lossDepth)
	e.sender = NewSide(func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.failed != 0 || e.q.Free() > 0
	})
	e.out, err = e.c.Device().Get(lossDepth*lossSlot, false)
	require.NoError(t, err)
	e.in, err = e.c.Device().Get(lossSlots*lossSlot, true)
	require.NoError(t, err)
	e.mr, err = e.c.Device().PD().RegMR(e.in.Bytes(), verbs.LocalWrite|verbs.RemoteWrite)
	require.NoError(t, err)
	n, err := e.c.PostReceives(lossRecvs)
	require.NoError(t, err)
	require.Equal(t, lossRecvs, n)
	return e
}

// private tells the peer where to write.
func (e *lossEnd) private() []byte {
	b := binary.BigEndian.AppendUint64(nil, e.mr.Addr())
	return binary.BigEndian.AppendUint64(b, uint64(e.mr.RKey()))
}

func (e *lossEnd) meet(private []byte) {
	e.peer.addr, e.peer.key = binary.BigEndian.Uint64(private), binary.BigEndian.Uint64(private[8:])
}

// message fills b, whose length it tells, and is the same for the same i.
func message(i uint32, b []byte) []byte {
	r := rand.New(rand.NewPCG(1, uint64(i)))
	n := lossHeader + r.IntN(100)
	if i%3 == 0 {
		n = lossHeader + r.IntN(lossSlot-lossHeader)
	}
	b = b[:n]
	binary.BigEndian.PutUint64(b, uint64(n))
	for j := lossHeader; j < n; j++ {
		b[j] = byte(r.Uint32())
	}
	return b
}

// run sends n messages, and waits until they are acknowledged.
func (e *lossEnd) run(n uint32) error {
	for i := uint32(0); i < n; {
		if err := e.c.Wait(e.sender); err != nil {
			return err
		}
		e.mu.Lock()
		for ; i < n && e.failed == 0 && e.q.Free() > 0; i++ {
			slot := uint64(i % lossDepth * lossSlot)
			b := message(i, e.out.Bytes()[slot:slot+lossSlot])
			e.q.Push(Send{
				Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: i, Addr: e.out.Addr() + slot, LKey: e.out.LKey(),
				Length: uint32(len(b)), RemoteAddr: e.peer.addr + uint64(i%lossSlots*lossSlot), RKey: uint32(e.peer.key),
			}, i)
		}
		err := e.q.Flush()
		failed := e.failed
		e.mu.Unlock()
		switch {
		case failed != 0:
			return failed
		case err != nil:
			return err
		}
	}
	for {
		e.mu.Lock()
		done, failed := e.done, e.failed
		e.mu.Unlock()
		if failed != 0 {
			return failed
		}
		if done == n {
			return nil
		}
		time.Sleep(10 * time.Microsecond)
	}
}

func (e *lossEnd) HandleCompletions(wcs []verbs.WC) {
	e.mu.Lock()
	defer e.mu.Unlock()
	want := make([]byte, lossSlot)
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.Success:
			if e.failed == 0 {
				e.failed = wc.Status
			}
		case wc.ID&RecvBit != 0:
			assert.Equal(e.t, e.received, wc.Imm)
			got := e.in.Bytes()[wc.Imm%lossSlots*lossSlot:]
			want := message(wc.Imm, want)
			assert.EqualValues(e.t, len(want), wc.ByteLen)
			assert.Equal(e.t, want, got[:len(want)])
			e.received++
			_, err := e.c.PostReceives(1)
			assert.NoError(e.t, err)
		default:
			for {
				tag, ok := e.q.Complete(wc.ID)
				if !ok {
					break
				}
				assert.Equal(e.t, e.done, tag)
				e.done++
			}
		}
	}
	if e.failed == 0 {
		assert.NoError(e.t, e.q.Flush())
	}
	e.sender.Signal()
}

func (e *lossEnd) HandleEvent(ev verbs.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.Type == verbs.EventDisconnected {
		e.noted = e.received
	}
}

func (e *lossEnd) HandleFailure(err error) { assert.NoError(e.t, err) }

func (e *lossEnd) Pending() bool { return false }

func (e *lossEnd) close() {
	require.NoError(e.t, e.c.Close())
	dev := e.c.Device()
	dev.Put(e.out)
	require.NoError(e.t, dev.PutRegistered(e.mr, e.in))
	require.NoError(e.t, e.c.Release())
}

// lossPair connects two ends across a network. The last of its results is called when both are closed, and sees that nothing is left.
func lossPair(t *testing.T, seed uint64, o simnet.Options) (*simnet.Network, *lossEnd, *lossEnd, func()) {
	seed = simnet.Seed(t, seed)
	n := simnet.New(seed, o)
	var ps [2]*softroce.Provider
	for i, a := range lossAddrs {
		first := 1<<24 - 1 - uint32(seed)%40 // crosses 2^24 soon
		ps[i] = softroce.New(&softroce.Config{
			Open: n.Host(a).Open, Rand: simnet.Random(seed<<1 + uint64(i)), FirstPSN: func() uint32 { return first },
		})
	}
	ctx := context.Background()
	l, err := ps[1].Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(lossAddrs[1], 0), Backlog: 8})
	require.NoError(t, err)
	id, err := ps[0].Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr()})
	require.NoError(t, err)
	x := newLossEnd(t, id)
	replied := make(chan *verbs.ConnParam, 1)
	go func() {
		rep, err := x.c.Connect(ctx, &verbs.ConnParam{RetryCount: 7, RNRRetryCount: 7, PrivateData: x.private()})
		assert.NoError(t, err)
		replied <- rep
	}()
	request, err := l.GetRequest(ctx)
	require.NoError(t, err)
	y := newLossEnd(t, request)
	y.meet(request.Request().PrivateData)
	y.c.Start()
	require.NoError(t, y.c.Accept(&verbs.ConnParam{RNRRetryCount: 7, PrivateData: y.private()}))
	rep := <-replied
	require.NotNil(t, rep)
	x.meet(rep.PrivateData)
	x.c.Start()
	return n, x, y, func() {
		require.NoError(t, l.Close())
		for _, p := range ps {
			require.NoError(t, p.Drain(ctx))
		}
		devices, arenas, bytes := Usage()
		require.Equal(t, [3]int{}, [3]int{devices, arenas, bytes})
	}
}

var lossAddrs = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}

// TestMessagesOverBadNetworks: every one arrives once, whole and in order, and completes in order; and the
// end comes behind the last of them.
func TestMessagesOverBadNetworks(t *testing.T) {
	us := time.Microsecond
	for _, o := range []simnet.Options{
		{Delay: 50 * us},
		{Delay: 50 * us, Loss: 0.01},
		{Delay: 50 * us, Loss: 0.05, Dup: 0.05, Reorder: 0.05},
		{Delay: 50 * us, Jitter: 50 * us, Loss: 0.2},
		{Delay: 50 * us, Jitter: 50 * us, Loss: 0.1, Dup: 0.2, Reorder: 0.2, Corrupt: 0.05},
	} {
		for _, seed := range simnet.Seeds(t, 3, false) {
			t.Run(fmt.Sprintf("%g%% lost, %g%% dup, seed %d", 100*o.Loss, 100*o.Dup, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n, x, y, end := lossPair(t, seed, o)
					const total = 200
					var wg sync.WaitGroup
					for _, e := range []*lossEnd{x, y} {
						wg.Go(func() { assert.NoError(t, e.run(total)) })
					}
					wg.Wait()
					x.close()
					time.Sleep(10 * time.Second)
					y.mu.Lock()
					require.EqualValues(t, total, y.received)
					require.EqualValues(t, total, y.noted)
					y.mu.Unlock()
					y.close()
					end()
					require.Equal(t, o.Loss > 0, n.Stats().Lost > 0)
				})
			})
		}
	}
}

// TestPartition: what is outstanding fails, once the transport's patience ends, and not before.
func TestPartition(t *testing.T) {
	const patience = 8 * (4096 << 19) * time.Nanosecond
	for _, lasts := range []bool{false, true} {
		t.Run(fmt.Sprint("lasts=", lasts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, x, y, end := lossPair(t, 1, simnet.Options{Delay: 50 * time.Microsecond})
				for _, e := range []*lossEnd{x, y} {
					require.NoError(t, e.run(30))
				}
				n.Partition(lossAddrs[0], lossAddrs[1])
				if !lasts {
					time.AfterFunc(patience-3*time.Second, func() { n.Heal(lossAddrs[0], lossAddrs[1]) })
				}
				start := time.Now()
				var wg sync.WaitGroup
				for _, e := range []*lossEnd{x, y} {
					e.mu.Lock()
					e.done = 0
					e.received = 0
					e.mu.Unlock()
				}
				for _, e := range []*lossEnd{x, y} {
					wg.Go(func() {
						err := e.run(100)
						if !lasts {
							assert.NoError(t, err)
							return
						}
						assert.ErrorIs(t, err, verbs.RetryExcErr)
						assert.Equal(t, patience, time.Since(start))
					})
				}
				wg.Wait()
				x.close()
				y.close()
				end()
			})
		})
	}
}
