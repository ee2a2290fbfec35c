package softroce

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestChaos dials, accepts, rejects, cancels, disconnects and closes at random
// moments over a bad network. Whatever happens, every call returns, what it returns is
// one of the errors it may, and in the end nothing is left.
func TestChaos(t *testing.T) {
	for seed := range uint64(10) {
		bubble(t, func(t *testing.T) {
			n := newCMNet(simnet.Options{
				Delay: time.Millisecond, Jitter: 20 * time.Millisecond, Loss: 0.2, Dup: 0.2, Reorder: 0.2,
			})
			l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), func(a *verbs.ListenAttr) { a.Backlog = 10 })
			pause := func(r *rand.Rand, d time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(d)))) }
			ctx, stop := context.WithCancel(background())
			var servers, dialers sync.WaitGroup
			for w := range uint64(4) {
				servers.Go(func() {
					r := rand.New(rand.NewPCG(seed, w))
					for {
						id, err := l.GetRequest(ctx)
						if err != nil {
							return
						}
						s := newSide(t, id)
						pause(r, 100*time.Millisecond)
						hasty := false // ended by ourselves, perhaps before it stood
						switch r.IntN(4) {
						case 0:
							_ = id.Reject([]byte("no"))
						case 1: // closed without an answer
						default:
							if id.Accept(&param) == nil {
								pause(r, 500*time.Millisecond)
								if hasty = r.IntN(2) == 0; hasty {
									assert.NoError(t, id.Disconnect())
									pause(r, 500*time.Millisecond)
								}
							}
						}
						s.close()
						if ts := s.types(); !hasty && len(ts) > 0 && ts[0] == verbs.EventDisconnected {
							t.Error("disconnected before it was established")
						}
					}
				})
			}
			for w := range uint64(8) {
				dialers.Go(func() {
					r := rand.New(rand.NewPCG(seed, 100+w))
					for range 15 {
						s := resolveSide(t, n.a, l.Addr())
						ctx, cancel := context.WithTimeout(background(), time.Duration(1+r.Int64N(int64(3*time.Second))))
						if r.IntN(4) == 0 {
							after := time.Duration(r.Int64N(int64(time.Second)))
							go func() {
								time.Sleep(after)
								_ = s.qp.Close()
								_ = s.id.Close()
							}()
						}
						_, err := s.id.Connect(ctx, &param)
						switch {
						case err == nil:
							pause(r, 500*time.Millisecond)
							assert.NoError(t, s.id.Disconnect())
						case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ECONNREFUSED),
							errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET):
							assert.Empty(t, s.types())
						default:
							t.Errorf("Connect: %v", err)
						}
						cancel()
						time.Sleep(time.Second) // past the other goroutine
						s.close()
					}
				})
			}
			dialers.Wait()
			stop()
			servers.Wait()
			require.NoError(t, l.Close())
			require.NoError(t, n.a.Drain(background()))
			require.NoError(t, n.b.Drain(background()))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, "closed", n.a.holders())
			require.Equal(t, "closed", n.b.holders())
		})
	}
}

// TestHasty: a passive side that disconnects as soon as it has accepted. The
// active side gets an error, or a connection and its end.
func TestHasty(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{Delay: time.Millisecond})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		for range 50 {
			x := resolveSide(t, n.a, l.Addr())
			done := x.dial(background())
			y := accept(t, l)
			require.NoError(t, y.id.Disconnect())
			if err := done(); err != nil {
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.Empty(t, x.types())
			} else {
				require.Equal(t, verbs.Event{Type: verbs.EventDisconnected}, x.wait(1))
			}
			y.wait(1)
			x.close()
			y.close()
		}
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
	})
}

// TestWrongCalls: what the state of an identifier does not allow.
func TestWrongCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 0), nil)
		x, y := n.connect(t, l)
		attr := &verbs.QPInitAttr{Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq}
		id, err := n.a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: l.Addr()})
		require.NoError(t, err)
		for _, domain := range []verbs.PD{nil, y.pd} {
			_, err = id.CreateQP(domain, attr)
			require.ErrorIs(t, err, syscall.EINVAL, "a domain of another device")
		}
		require.NoError(t, id.Close())
		_, err = id.CreateQP(x.pd, attr)
		require.ErrorIs(t, err, net.ErrClosed)
		for _, err := range []error{
			second(id.Connect(background(), &param)), y.id.Accept(&param), y.id.Reject(nil), x.id.Accept(&param),
			second(x.id.Connect(background(), &param)),
		} {
			require.Error(t, err)
		}
		ctx, cancel := context.WithCancel(background())
		cancel()
		_, err = n.b.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP})
		require.ErrorIs(t, err, context.Canceled)
		_, err = n.b.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PortSpace(0x222)})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		x.ping(y)
		x.close()
		y.close()
		require.ErrorIs(t, y.id.Accept(&param), net.ErrClosed)
		require.NoError(t, l.Close())
		unused(t, n.a, n.b)
		require.NoError(t, Drain(background()), "of a provider that was never used")
	})
}
