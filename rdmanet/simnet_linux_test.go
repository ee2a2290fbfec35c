package rdmanet_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/rdmanet"
)

// simulated runs f in simulated time, once what earlier tests have closed in real time is done: what the package waits with must
// not belong to both.
func simulated(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, rdmanet.Drain(ctx))
	synctest.Test(t, f)
}

// sim is two hosts on a simulated network, each with a softroce device: sim0 of those who
// dial, sim1 of those who listen. While it lasts they are the only devices there are.
type sim struct {
	*simnet.Network
	t              testing.TB
	client, server netip.Addr
	hosts          [2]*softroce.Provider
}

// newSim opens a network until the test ends, which must have left nothing behind then.
func newSim(t testing.TB, seed uint64, o simnet.Options) *sim {
	t.Helper()
	seed = simnet.Seed(t, seed)
	s := &sim{
		Network: simnet.New(seed, o), t: t,
		client: netip.MustParseAddr("10.0.0.1"), server: netip.MustParseAddr("10.0.0.2"),
	}
	before := goleak.IgnoreCurrent()
	files := openFiles()
	for i, a := range []netip.Addr{s.client, s.server} {
		s.hosts[i] = softroce.New(&softroce.Config{
			Name: fmt.Sprintf("sim%d", i), Open: s.Host(a).Open, Rand: simnet.Random(seed<<1 + uint64(i)),
		})
	}
	// Simulated time goes on for ever where something is waited for in vain beside a living connection.
	hangs := time.AfterFunc(24*time.Hour, func() {
		buf := make([]byte, 1<<20)
		panic("hangs\n" + string(buf[:runtime.Stack(buf, true)]))
	})
	undo := cm.Replace(&cm.Manager{Providers: []verbs.Provider{s.hosts[0], s.hosts[1]}})
	t.Cleanup(func() {
		defer undo()
		defer hangs.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.NoError(t, rdmanet.Drain(ctx))
		for _, h := range s.hosts {
			assert.NoError(t, h.Drain(ctx))
		}
		for _, d := range rdmanet.AllStats() {
			assert.Zero(t, d.Conns, d.Device)
			assert.Zero(t, d.ReadBuffer+d.WriteBuffer, d.Device)
		}
		devices, arenas, bytes := rc.Usage()
		assert.Zero(t, devices, "devices")
		assert.Zero(t, arenas, "arenas")
		assert.Zero(t, bytes, "registered bytes")
		// Without a network of its own, processes of other packages' tests may be connected to this one for a moment. It is
		// not simulated time that ends it.
		for tries := 0; !testnet.Own() && openFiles() > files && tries < 500; tries++ {
			_ = syscall.Nanosleep(&syscall.Timespec{Nsec: 1e7}, nil)
		}
		assert.LessOrEqual(t, openFiles(), files)
		assert.NoError(t, goleak.Find(before))
	})
	return s
}

// listen listens until the test ends, before it is seen that nothing is left.
func (s *sim) listen() *rdmanet.Listener {
	s.t.Helper()
	l, err := s.tryListen()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { l.Close() })
	return l.(*rdmanet.Listener)
}

func (s *sim) tryListen() (net.Listener, error) {
	lc := &rdmanet.ListenConfig{Device: "sim1"}
	return lc.Listen(context.Background(), "rdma", net.JoinHostPort(s.server.String(), "0"))
}

func (s *sim) dialer() *rdmanet.Dialer { return &rdmanet.Dialer{Device: "sim0"} }

func (s *sim) dial(addr string) (net.Conn, error) { return s.dialer().Dial("rdma", addr) }

// pair returns the two ends of a connection, which are closed with the test at the latest.
func (s *sim) pair(l *rdmanet.Listener) (client, server *rdmanet.Conn) {
	s.t.Helper()
	client = dial(s.t, s.dialer(), l.Addr())
	c, err := l.Accept()
	require.NoError(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return client, c.(*rdmanet.Conn)
}

func (s *sim) cut()  { s.Partition(s.client, s.server) }
func (s *sim) heal() { s.Heal(s.client, s.server) }
