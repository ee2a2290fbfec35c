package rdmanet_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// isMessage is a filter for messages of the connection manager.
func isMessage(attrs ...ibcm.Attr) func(*simnet.Frame) bool {
	return func(f *simnet.Frame) bool {
		var p wire.Packet
		if p.Decode(f.Data) != nil || p.Opcode != wire.UDSendOnly || p.DestQP != wire.QPNGSI {
			return false
		}
		d, ok := ibcm.ParseDest(p.Payload)
		for _, a := range attrs {
			if ok && d.Attr == a {
				return true
			}
		}
		return false
	}
}

// TestPartitionWhileConnecting: no answer to a dial.
func TestPartitionWhileConnecting(t *testing.T) {
	t.Run("lasts", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			s.cut()
			start := time.Now()
			_, err := s.dial(l.Addr().String())
			requireTimedOut(t, err)
			require.Equal(t, 16*6144*time.Millisecond, time.Since(start), "as long as rdma_cm: 15 repetitions, 6.144 s apart")
			s.heal()
			s.works(l)
		})
	})
	t.Run("lasts longer than the dialer waits", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			s.cut()
			start := time.Now()
			d := s.dialer()
			d.Timeout = 3 * time.Second
			_, err := d.Dial("rdma", l.Addr().String())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 3*time.Second, time.Since(start))
			s.heal()
			s.works(l)
		})
	})
	t.Run("heals", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			s.cut()
			time.AfterFunc(20*time.Second, s.heal)
			start := time.Now()
			c, sv := s.pair(l)
			require.Less(t, time.Since(start), 27*time.Second)
			require.NoError(t, c.Close())
			require.NoError(t, sv.Close())
			require.Zero(t, l.Stats().Failed)
		})
	})
}

// TestConnectMessagesLost: each message of connecting, for a while or for good.
func TestConnectMessagesLost(t *testing.T) {
	for _, c := range []struct {
		name string
		attr []ibcm.Attr
	}{
		{"REQ", []ibcm.Attr{ibcm.AttrREQ}}, {"REP", []ibcm.Attr{ibcm.AttrREP}}, {"RTU", []ibcm.Attr{ibcm.AttrRTU}},
		{"all", []ibcm.Attr{ibcm.AttrREQ, ibcm.AttrREP, ibcm.AttrRTU, ibcm.AttrREJ, ibcm.AttrMRA}},
	} {
		for n := range 4 {
			t.Run(fmt.Sprint(c.name, " ", n+1), func(t *testing.T) {
				simulated(t, func(t *testing.T) {
					s := newSim(t, 1, localNet)
					l := s.listen()
					s.DropNext(n+1, isMessage(c.attr...))
					start := time.Now()
					s.works(l)
					require.Less(t, time.Since(start), 10*time.Second)
					require.EqualValues(t, 1, l.Stats().Accepted)
					require.Zero(t, l.Stats().Failed)
				})
			})
		}
	}
	t.Run("every RTU, then data", func(t *testing.T) {
		// The first packet of the peer stands for it.
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			s.Filter(isMessage(ibcm.AttrRTU))
			c := dial(t, s.dialer(), l.Addr())
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			sv, err := l.Accept()
			require.NoError(t, err)
			_, err = sv.Read(make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, sv.Close())
		})
	})
	t.Run("every RTU, and no data", func(t *testing.T) {
		// The question whether the peer lives stands for it.
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			heal := s.Filter(isMessage(ibcm.AttrRTU))
			start := time.Now()
			c := dial(t, s.dialer(), l.Addr())
			sv, err := l.Accept()
			require.NoError(t, err)
			require.Less(t, time.Since(start), 16*time.Second)
			heal()
			s.works(l)
			require.NoError(t, c.Close())
			require.NoError(t, sv.Close())
		})
	})
	t.Run("every REP", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			heal := s.Filter(isMessage(ibcm.AttrREP))
			start := time.Now()
			_, err := s.dial(l.Addr().String())
			requireTimedOut(t, err)
			require.Less(t, time.Since(start), 100*time.Second)
			time.Sleep(time.Minute)
			require.Zero(t, l.Stats().Accepted)
			require.Positive(t, l.Stats().Failed)
			heal()
			s.works(l)
		})
	})
}

// TestPartitionWhileAccepting: the network is cut behind the REP. The dialer has a connection,
// the listener has none.
func TestPartitionWhileAccepting(t *testing.T) {
	simulated(t, func(t *testing.T) {
		s := newSim(t, 1, localNet)
		l := s.listen()
		isREP := isMessage(ibcm.AttrREP)
		var cut atomic.Bool
		heal := s.Filter(func(f *simnet.Frame) bool {
			drop := cut.Load()
			if isREP(f) {
				cut.Store(true)
			}
			return drop
		})
		c := dial(t, s.dialer(), l.Addr())
		start := time.Now()
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		requireTimedOut(t, err)
		require.InDelta(t, patience, time.Since(start), float64(10*time.Millisecond))
		time.Sleep(2 * time.Minute)
		require.Zero(t, l.Stats().Accepted)
		require.EqualValues(t, 1, l.Stats().Failed)
		heal()
		s.works(l)
	})
}
