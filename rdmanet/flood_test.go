package rdmanet

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/ring"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// flooded is a listener on one host of a simulated network, a provider on another, and a third from which
// requests come whose sources are forged.
type flooded struct {
	t        *testing.T
	l        *Listener
	dialers  *softroce.Provider
	flooder  netio.Conn
	path     *netio.Path
	answers  atomic.Int64
	provider *softroce.Provider
}

func newFlooded(t *testing.T, backlog int) *flooded {
	n := simnet.New(7, simnet.Options{})
	server, client, forger := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	f := &flooded{
		t:        t,
		provider: softroce.New(&softroce.Config{Open: n.Host(server).Open}),
		dialers:  softroce.New(&softroce.Config{Open: n.Host(client).Open}),
		path:     &netio.Path{Local: forger, Remote: server},
	}
	var err error
	f.flooder, err = n.Host(forger).Open(f)
	require.NoError(t, err)
	arrived := max(backlog/2, 1)
	part, err := f.provider.Listen(context.Background(), &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(server, 7), Backlog: arrived,
	})
	require.NoError(t, err)
	parts := &cm.Listener{Parts: []cm.Part{{Listener: part, Provider: "softroce"}}}
	f.l = newListener("rdma", ListenConfig{Backlog: backlog}, parts, max(backlog-arrived, 1), make(chan error, 1))
	return f
}

// HandlePackets takes the answers to forged requests, which nobody reads.
func (f *flooded) HandlePackets(ps []netio.Packet) { f.answers.Add(int64(len(ps))) }

// forge sends a request of a peer that is not there.
func (f *flooded) forge() {
	q := &ibcm.REQ{
		LocalCommID: rand.Uint32() | 1, ServiceID: ibcm.ServiceID(uint16(verbs.PSTCP), 7), LocalCAGUID: rand.Uint64(),
		LocalQPN: rand.Uint32()&0xfffff | 0x100, RemoteCMResponseTimeout: 31, LocalCMResponseTimeout: 31, MaxCMRetries: 15,
		TransportServiceType: ibcm.TransportRC, PKey: wire.DefaultPKey, PathMTU: 3, RetryCount: 7, RNRRetryCount: 7,
		Primary: ibcm.PathRecord{
			LocalGID: ibcm.GID(f.path.Local), RemoteGID: ibcm.GID(f.path.Remote), HopLimit: 64, LocalACKTimeout: 31,
		},
	}
	h := ibcm.IPHeader{Source: netip.AddrPortFrom(f.path.Local, 9), Destination: f.path.Remote}
	h.Put(q.PrivateData[:])
	hello := q.PrivateData[ibcm.IPHeaderSize:] // of rsockets version 1
	hello[0], hello[3], hello[23], hello[30], hello[38] = 1, 64, 2, 1, 0x40

	tx := netio.NewTxBatch()
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.QPNGSI},
		DETH: wire.DETH{QKey: wire.QKeyGSI, SrcQP: wire.QPNGSI},
	}
	p.PutHeaders(tx.Add(f.path, p.HeaderLen()))
	tx.Payload(ibcm.Encode(ibcm.NewHeader(1, q), q)[:])
	assert.NoError(f.t, f.flooder.Send(tx))
}

// dial connects, and closes at both ends. A connection that is ended because its last message is late, on a busy
// machine, is tried again.
func (f *flooded) dial() time.Duration {
	f.t.Helper()
	begin := time.Now()
	for !f.dialOnce() {
		require.Less(f.t, time.Since(begin), 30*time.Second)
	}
	return time.Since(begin)
}

func (f *flooded) dialOnce() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	id, err := f.dialers.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(f.path.Remote, 7)})
	require.NoError(f.t, err)
	c, err := ring.Client(ctx, id, &ring.Config{})
	require.NoError(f.t, err)
	defer c.Close()
	require.NoError(f.t, f.l.SetDeadline(time.Now().Add(2*time.Second)))
	s, err := f.l.Accept()
	if err != nil {
		require.ErrorIs(f.t, err, os.ErrDeadlineExceeded)
		return false
	}
	require.NoError(f.t, c.Close())
	require.NoError(f.t, s.Close())
	return true
}

func (f *flooded) close() {
	require.NoError(f.t, f.l.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.NoError(f.t, ring.Drain(ctx))
	require.NoError(f.t, f.provider.Drain(ctx))
	require.NoError(f.t, f.dialers.Drain(ctx))
	require.NoError(f.t, f.flooder.Close())
}

// TestForgedRequestsMakeRoom: those who never answer keep others out of a small backlog for a moment, not for
// the 98 s that a peer may take.
func TestForgedRequestsMakeRoom(t *testing.T) {
	for _, backlog := range []int{1, 2, 8} {
		f := newFlooded(t, backlog)
		for range 3 * backlog {
			f.forge()
		}
		require.Eventually(t, func() bool { return f.answers.Load() > 0 }, 5*time.Second, time.Millisecond)
		took := f.dial()
		t.Log("backlog", backlog, took)
		assert.Less(t, took, 5*time.Second)
		for range 3 {
			f.dial()
		}
		f.close()
		s := f.l.Stats()
		assert.EqualValues(t, 4, s.Accepted)
		assert.Positive(t, s.Failed, "those that made room")
	}
}

// TestSlowPeerKeepsItsPlace: a peer that takes long to answer does no harm while there is room.
func TestSlowPeerKeepsItsPlace(t *testing.T) {
	f := newFlooded(t, 8)
	f.forge()
	require.Eventually(t, func() bool { return f.answers.Load() > 0 }, 5*time.Second, time.Millisecond)
	for end := time.Now().Add(2 * answerTime); time.Now().Before(end); {
		f.dial()
	}
	assert.Zero(t, f.l.Stats().Failed)
	f.close()
}

// TestFlood: under thousands of forged requests a second a dial succeeds soon.
func TestFlood(t *testing.T) {
	rate, backlog := 4000.0, defaultBacklog
	if race.Enabled { // all is ten times as slow
		rate, backlog = rate/10, backlog/10
	}
	f := newFlooded(t, backlog)
	defer f.close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var sent atomic.Int64
	wg.Go(func() {
		begin := time.Now()
		for ctx.Err() == nil {
			// What is late because the machine is busy comes not all at once.
			due := min(int64(time.Since(begin).Seconds()*rate), sent.Load()+int64(rate/100))
			for ; sent.Load() < due; sent.Add(1) {
				f.forge()
			}
			time.Sleep(time.Millisecond)
		}
	})
	time.Sleep(time.Second) // the backlog is full
	var took []time.Duration
	for range 5 {
		took = append(took, f.dial())
	}
	t.Logf("%d forged, %d datagrams in answer, %+v", sent.Load(), f.answers.Load(), f.l.Stats())
	slices.Sort(took)
	t.Log(took)
	assert.Less(t, took[2], 4*time.Second)
}
