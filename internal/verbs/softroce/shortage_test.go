package softroce

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// poor is a process's part for which there are no descriptors, sometimes.
type poor struct {
	Sharer
	short func(error)

	mu    sync.Mutex
	lacks int // how often there is none
	tries int
}

func (p *poor) lack() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries++
	if p.lacks == 0 {
		return nil
	}
	p.lacks--
	err := fmt.Errorf("%w: %w", share.ErrDropped, syscall.EMFILE)
	p.short(err)
	return err
}

func (p *poor) Watch(slot uint8, died func()) (func(), error) {
	if err := p.lack(); err != nil {
		return nil, err
	}
	return p.Sharer.Watch(slot, died)
}

func (p *poor) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tries
}

// impoverish makes provider i of a shared host lack descriptors n times.
func (n *sharedNet) impoverish(i, lacks int) *poor {
	p := &poor{lacks: lacks}
	join := n.ps[i].cfg.Share
	n.ps[i].cfg.Share = func(received func(*netio.Packet), short func(error)) (s Sharer, err error) {
		p.short = short
		p.Sharer, err = join(received, short)
		return p, err
	}
	return p
}

// TestWatchedLater: a process that could not be watched for want of a descriptor is, once there is one. A
// connection that ends before that leaves nothing behind.
func TestWatchedLater(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprint("closes=", closes), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newSharedNet()
				p := n.impoverish(0, 3)
				l := mustListen(t, n.ps[1], netip.AddrPortFrom(addrB, 7472), nil)
				x := resolveSide(t, n.ps[0], l.Addr())
				done := x.dial(background())
				y := accept(t, l)
				require.NoError(t, done())
				require.Equal(t, 1, p.count())
				if closes {
					x.close()
					y.wait(2)
					time.Sleep(10 * watchAgain)
					require.Equal(t, 1, p.count())
				} else {
					time.Sleep(10 * watchAgain)
					require.Equal(t, 4, p.count())
					n.kill(y.id.Device().(*device).slot)
					require.Equal(t, verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, x.wait(1))
					x.close()
				}
				y.close()
				require.NoError(t, l.Close())
				unused(t, append(n.ps, n.far)...)
			})
		})
	}
}

// TestDiedUnwatched: one that died before it could be watched is found dead.
func TestDiedUnwatched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newSharedNet()
		n.impoverish(0, 2)
		l := mustListen(t, n.ps[1], netip.AddrPortFrom(addrB, 7472), nil)
		x := resolveSide(t, n.ps[0], l.Addr())
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		n.kill(y.id.Device().(*device).slot)
		begin := time.Now()
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, x.wait(1))
		require.Less(t, time.Since(begin), 3*watchAgain)
		x.close()
		y.close()
		require.NoError(t, l.Close())
		unused(t, append(n.ps, n.far)...)
	})
}

// TestShortageIsTold: to listeners, now and then; and to whoever dials in vain meanwhile.
func TestShortageIsTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		p := New(&Config{Open: n.Host(addrA).Open})
		told := make(chan error, 100)
		l := mustListen(t, p, netip.AddrPortFrom(addrA, 7), func(a *verbs.ListenAttr) {
			a.Short = func(err error) { told <- err }
		})
		in := l.(*listener).in
		fail := func(when bool) error {
			x := resolveSide(t, p, netip.AddrPortFrom(addrB, 7)) // where nobody is
			ctx, cancel := context.WithTimeout(background(), time.Second)
			defer cancel()
			if when {
				time.AfterFunc(500*time.Millisecond, func() { in.short(syscall.EMFILE) })
			}
			_, err := x.id.Connect(ctx, &param)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			x.close()
			return err
		}
		require.NotErrorIs(t, fail(false), syscall.EMFILE)
		err := fail(true)
		require.ErrorIs(t, err, syscall.EMFILE)
		require.ErrorContains(t, err, "this process ran short meanwhile")
		require.NotErrorIs(t, fail(false), syscall.EMFILE, "that is over")
		require.ErrorIs(t, <-told, syscall.EMFILE)

		time.Sleep(shortPause)
		for range 100 {
			in.short(syscall.EMFILE)
			time.Sleep(shortPause / 50)
		}
		synctest.Wait()
		require.Len(t, told, 2)
		require.NoError(t, l.Close())
		unused(t, p)
	})
}
