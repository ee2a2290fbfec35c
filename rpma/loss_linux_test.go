package rpma_test

import (
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/rpma"
)

// sim is two hosts on a simulated network, each with a device and a peer on it.
type sim struct {
	*simnet.Network
	addr [2]netip.Addr
	peer [2]*rpma.Peer
}

// simulate runs a test in simulated time.
func simulate(t *testing.T, o simnet.Options, f func(t *testing.T, s *sim)) {
	synctest.Test(t, func(t *testing.T) {
		seed := simnet.Seed(t, 1)
		s := &sim{Network: simnet.New(seed, o), addr: [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}
		var hosts []verbs.Provider
		for i, a := range s.addr {
			hosts = append(hosts, softroce.New(&softroce.Config{
				Name: fmt.Sprintf("sim%d", i), Open: s.Host(a).Open, Rand: simnet.Random(seed<<1 + uint64(i)),
			}))
		}
		for i, h := range hosts {
			// The manager tells providers apart by their names, and these have the same.
			undo := cm.Replace(&cm.Manager{Providers: []verbs.Provider{h}})
			ds, err := rpma.Devices()
			require.NoError(t, err)
			s.peer[i], err = rpma.NewPeer(&ds[0])
			undo()
			require.NoError(t, err)
		}
		f(t, s)
		for i, p := range s.peer {
			require.NoError(t, p.Close())
			require.NoError(t, hosts[i].(*softroce.Provider).Drain(t.Context()))
		}
	})
}

// connect is pair on a simulated network, whose ends are the caller's to close.
func (s *sim) connect(t *testing.T, client, server *rpma.ConnConfig) (*rpma.Conn, *rpma.Conn) {
	ep, err := s.peer[1].Listen(netip.AddrPortFrom(s.addr[1], 0).String())
	require.NoError(t, err)
	accepted := make(chan *rpma.Conn, 1)
	go func() {
		var d *rpma.Conn
		r, err := ep.Accept(t.Context(), server)
		if assert.NoError(t, err) {
			d, err = r.Connect(t.Context(), nil)
			assert.NoError(t, err)
		}
		accepted <- d
	}()
	c, err := s.peer[0].Dial(t.Context(), ep.Addr().String(), client)
	require.NoError(t, err)
	d := <-accepted
	require.NoError(t, ep.Close())
	return c, d
}

// TestKeepAlive: a peer that is gone without a word is noticed by who does nothing, and not earlier than that.
func TestKeepAlive(t *testing.T) {
	t.Run("on", func(t *testing.T) {
		simulate(t, simnet.Options{Delay: time.Millisecond}, func(t *testing.T, s *sim) {
			c, d := s.connect(t, nil, &rpma.ConnConfig{KeepAlive: time.Minute})
			time.Sleep(time.Hour)
			require.NoError(t, c.Err(), "a peer that lives")
			require.NoError(t, d.Err())
			s.Partition(s.addr[0], s.addr[1])
			start := time.Now()
			<-c.Done()
			took := time.Since(start)
			require.LessOrEqual(t, took, 40*time.Second, "15 s, and what the device takes to give up")
			require.ErrorIs(t, c.Err(), syscall.ETIMEDOUT)
			<-d.Done()
			require.LessOrEqual(t, time.Since(start), 90*time.Second)
			require.ErrorIs(t, d.Err(), syscall.ETIMEDOUT)
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
		})
	})
	t.Run("off", func(t *testing.T) {
		simulate(t, simnet.Options{Delay: time.Millisecond}, func(t *testing.T, s *sim) {
			c, d := s.connect(t, &rpma.ConnConfig{KeepAlive: -1}, &rpma.ConnConfig{KeepAlive: -1})
			s.Partition(s.addr[0], s.addr[1])
			time.Sleep(24 * time.Hour)
			require.NoError(t, c.Err())
			require.NoError(t, d.Err())
			err := c.Do(t.Context(), rpma.Write(rpma.Remote{}, rpma.Local{}))
			require.ErrorIs(t, err, syscall.ETIMEDOUT, "who asks is told")
			<-c.Done()
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
		})
	})
	t.Run("peer without receives", func(t *testing.T) {
		simulate(t, simnet.Options{Delay: time.Millisecond}, func(t *testing.T, s *sim) {
			c, d := s.connect(t, &rpma.ConnConfig{KeepAlive: time.Second}, nil)
			done := make(chan error, 1)
			go func() { done <- c.Do(t.Context(), rpma.Send(rpma.Local{})) }()
			time.Sleep(time.Minute)
			require.NoError(t, c.Err(), "it says so, and lives")
			require.NoError(t, d.PostRecv(rpma.Local{}, 1))
			require.NoError(t, <-done)
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
		})
	})
}

// TestUnreachable: a host that does not answer, and one whose program does not, are given up as rdma_cm does it.
func TestUnreachable(t *testing.T) {
	simulate(t, simnet.Options{Delay: time.Millisecond}, func(t *testing.T, s *sim) {
		s.Partition(s.addr[0], s.addr[1])
		start := time.Now()
		_, err := s.peer[0].Dial(t.Context(), netip.AddrPortFrom(s.addr[1], 7).String(), nil)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.Equal(t, rpma.EventUnreachable, rpma.EventOf(err))
		require.Greater(t, time.Since(start), 90*time.Second)
		require.Less(t, time.Since(start), 110*time.Second)
	})
}

// TestLoss: operations come whole and in order over a network that loses, doubles and reorders.
func TestLoss(t *testing.T) {
	for _, native := range []rpma.NativeOps{rpma.NativeAlways, rpma.NativeNever} {
		simulate(t, simnet.Options{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.05, Dup: 0.02, Reorder: 0.02}, func(t *testing.T, s *sim) {
			c, d := s.connect(t, &rpma.ConnConfig{Native: native}, nil)
			own, err := s.peer[0].Alloc(1<<16, clientUse)
			require.NoError(t, err)
			far, err := s.peer[1].Alloc(1<<16, serverUse)
			require.NoError(t, err)
			r := remote(t, far)
			for i := range own.Bytes() {
				own.Bytes()[i] = byte(i * i)
			}
			for i := range 20 {
				require.NoError(t, d.PostRecv(far.Slice(1<<15, 100), 5))
				require.NoError(t, c.Do(t.Context(),
					rpma.Write(r.Slice(0, 20000), own.Slice(i, 20000)),
					rpma.Flush(r.Slice(0, 20000), rpma.Visibility),
					rpma.AtomicWrite(r.Slice(24000, 8), [8]byte{byte(i)}),
					rpma.Read(own.Slice(1<<15, 24008), r.Slice(0, 24008)),
					rpma.SendImm(own.Slice(0, 10), uint32(i)),
				))
				require.Equal(t, own.Bytes()[i:i+20000], far.Bytes()[:20000])
				require.Equal(t, byte(i), own.Bytes()[1<<15+24000])
				require.NoError(t, d.CQ().Wait(t.Context()))
				wc := make([]rpma.Completion, 2)
				n, err := d.CQ().Poll(wc)
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, uint32(i), wc[0].Imm)
			}
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
			require.NoError(t, own.Close())
			require.NoError(t, far.Close())
		})
	}
}

// TestLastWord: what the peer has received and then disconnected is done, although its acknowledgement comes behind the
// disconnection. What it has not received is flushed, a moment later.
func TestLastWord(t *testing.T) {
	simulate(t, simnet.Options{Delay: time.Millisecond, Reorder: 0.5, ReorderBy: 20 * time.Millisecond}, func(t *testing.T, s *sim) {
		for range 50 {
			c, d := s.connect(t, nil, nil)
			require.NoError(t, d.PostRecv(rpma.Local{}, 1))
			go func() {
				_ = d.CQ().Wait(t.Context())
				_ = d.Disconnect()
			}()
			require.NoError(t, c.Do(t.Context(), rpma.Send(rpma.Local{})))
			for _, want := range []rpma.Event{rpma.EventEstablished, rpma.EventClosed} {
				ev, err := c.NextEvent(t.Context())
				require.NoError(t, err)
				require.Equal(t, want, ev)
			}
			require.ErrorIs(t, c.Err(), io.EOF, "who is told of the event finds why")
			<-c.Done()
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
		}
		c, d := s.connect(t, nil, nil)
		start := time.Now()
		require.NoError(t, d.Disconnect())
		err := c.Do(t.Context(), rpma.Send(rpma.Local{}))
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Less(t, time.Since(start), time.Second)
		<-c.Done()
		require.ErrorIs(t, c.Err(), io.EOF)
		require.NoError(t, c.Close())
		require.NoError(t, d.Close())
	})
}
