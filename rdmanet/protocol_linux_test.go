package rdmanet_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

// stranger is an RDMA program that speaks something else.
type stranger struct {
	id verbs.CMID
	pd verbs.PD
	cq verbs.CQ
	qp verbs.QP
}

func newStranger(t *testing.T, id verbs.CMID) *stranger {
	s := &stranger{id: id}
	var err error
	s.pd, err = id.Device().AllocPD()
	require.NoError(t, err)
	s.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 64})
	require.NoError(t, err)
	s.qp, err = id.CreateQP(s.pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 16, MaxRecvWR: 16})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, s.qp.Close())
		assert.NoError(t, s.id.Close())
		assert.NoError(t, s.cq.Close())
		assert.NoError(t, s.pd.Close())
	})
	return s
}

// call connects to a listener with private data of its own making.
func call(t *testing.T, addr string, private []byte) (*stranger, *verbs.ConnParam, error) {
	id, err := cm.Default().Resolve(t.Context(), "softroce", verbs.CMIDAttr{
		PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort(addr), Handler: func(verbs.Event) {},
	})
	require.NoError(t, err)
	s := newStranger(t, id)
	rep, err := id.Connect(t.Context(), &verbs.ConnParam{PrivateData: private, RetryCount: 7, RNRRetryCount: 7, FlowControl: true})
	return s, rep, err
}

// hello is an rsockets block that says the given version.
func hello(version byte) []byte {
	b := make([]byte, 40)
	b[0], b[1], b[3] = version, 2, 16
	b[23] = 2                     // entries of the target SGL
	b[15], b[31], b[38] = 1, 1, 4 // addresses, and 1024 bytes of receive buffer
	return b
}

// A peer that speaks something else is refused and counted; others do not notice.
func TestStrangeClient(t *testing.T) {
	l := listen(t, nil)
	client := dial(t, nil, l.Addr())
	server := accept(t, l)
	for i, private := range [][]byte{nil, []byte("GET / HTTP/1.1\r\n\r\n"), hello(2), hello(0), hello(1)[:1]} {
		_, _, err := call(t, l.Addr().String(), private)
		var rej *verbs.RejectError
		require.ErrorAs(t, err, &rej)
		assert.Equal(t, 28, rej.Reason)
		require.Eventually(t, func() bool { return l.Stats().Failed == uint64(i+1) }, 5*time.Second, time.Millisecond)
	}
	_, err := client.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, readOne(server))
	dial(t, nil, l.Addr())
	accept(t, l)
}

// One that connects properly and then writes where it may not loses its own connection only.
func TestHostileClient(t *testing.T) {
	l := listen(t, nil)
	client := dial(t, nil, l.Addr())
	server := accept(t, l)
	for _, wr := range []verbs.SendWR{
		{Op: verbs.OpWrite, RemoteAddr: 4096, RKey: 0xdeadbeef, Inline: []byte("boo")},
		{Op: verbs.OpWriteWithImm, RemoteAddr: 4096, RKey: 0, Imm: 100, Inline: []byte("boo")},
		{Op: verbs.OpWriteWithImm, Imm: 1000}, // more than was written
		{Op: verbs.OpSend, Inline: []byte("boo")},
	} {
		s, _, err := call(t, l.Addr().String(), hello(1))
		require.NoError(t, err)
		victim := accept(t, l)
		wr.Flags = verbs.Signaled
		n, err := s.qp.PostSend([]verbs.SendWR{wr})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, victim.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = victim.Read(make([]byte, 2000))
		require.Error(t, err)
		require.NotEqual(t, io.EOF, err, "%v", wr.Op)
		var ne interface{ Timeout() bool }
		require.ErrorAs(t, err, &ne)
		assert.False(t, ne.Timeout(), "%v: %v", wr.Op, err)
		t.Log(err)
	}
	_, err := client.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, readOne(server))
}

// What is dropped without a trace to anybody is counted.
func TestDropsAreCounted(t *testing.T) {
	counters := func() (sum rdmanet.DeviceStats) {
		for _, d := range rdmanet.AllStats() {
			sum.BadICRC += d.BadICRC
			sum.BadKey += d.BadKey
			sum.BadPacket += d.BadPacket
		}
		return sum
	}
	l := listen(t, nil)
	client := dial(t, nil, l.Addr())
	server := accept(t, l)
	before := counters()
	require.Eventually(t, func() bool {
		// Each comes from another port, since processes share the receiving one.
		c, err := net.Dial("udp", "127.0.0.1:4791")
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write(bytes.Repeat([]byte{4}, 64)) // no ICRC
		require.NoError(t, err)
		_, err = c.Write([]byte("GET /")) // no RoCE at all
		require.NoError(t, err)
		now := counters()
		return now.BadICRC > before.BadICRC && now.BadPacket > before.BadPacket
	}, 10*time.Second, time.Millisecond)

	s, _, err := call(t, l.Addr().String(), hello(1))
	require.NoError(t, err)
	victim := accept(t, l)
	_, err = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: 4096, RKey: 1, Inline: []byte("boo")}})
	require.NoError(t, err)
	require.NoError(t, victim.SetReadDeadline(time.Now().Add(10*time.Second)))
	require.ErrorIs(t, readOne(victim), syscall.ECONNRESET)
	assert.Greater(t, counters().BadKey, before.BadKey)

	_, err = client.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, readOne(server), "nobody else notices")
}

// A server that speaks something else gives ErrProtocol.
func TestStrangeServer(t *testing.T) {
	l, err := cm.Default().Listen(t.Context(), "softroce", verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 4,
	})
	require.NoError(t, err)
	defer l.Close()
	for _, private := range [][]byte{nil, []byte("no rsockets"), hello(2)} {
		errc := make(chan error, 1)
		go func() {
			_, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 20*time.Second)
			errc <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		id, err := l.Parts[0].GetRequest(ctx)
		cancel()
		require.NoError(t, err)
		id.SetHandler(func(verbs.Event) {})
		s := newStranger(t, id)
		require.NoError(t, s.id.Accept(&verbs.ConnParam{PrivateData: private, RetryCount: 7, RNRRetryCount: 7}))
		err = <-errc
		require.ErrorIs(t, err, rdmanet.ErrProtocol)
		var e *rdmanet.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, rdmanet.Phase("exchange"), e.Phase)
		assert.NotEmpty(t, e.Hint)
	}
}

// A server that takes the request and says nothing more.
func TestSilentServer(t *testing.T) {
	t.Parallel() // it mostly waits
	l, err := cm.Default().Listen(t.Context(), "softroce", verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 4,
	})
	require.NoError(t, err)
	defer l.Close()
	_, err = rdmanet.DialTimeout("rdma", l.Addr().String(), 100*time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// One that refuses by its own reasons.
	errc := make(chan error, 1)
	go func() {
		_, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 20*time.Second)
		errc <- err
	}()
	for {
		// The dialer may hear of it late, when it has asked again: that is no new request.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		id, err := l.Parts[0].GetRequest(ctx)
		cancel()
		if err == nil {
			id.SetHandler(func(verbs.Event) {})
			_ = id.Reject([]byte("go away")) // the first one's dialer has given up
			require.NoError(t, id.Close())
		} else {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		select {
		case err = <-errc:
		case <-time.After(100 * time.Millisecond):
			continue
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		var rej *rdmanet.RejectError
		require.ErrorAs(t, err, &rej)
		assert.Equal(t, 28, rej.Reason)
		assert.Equal(t, "go away", string(rej.PrivateData[:7]))
		break
	}
}
