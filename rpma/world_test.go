package rpma_test

import (
	"cmp"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/rpma"
)

// local is the address of the device that most tests use: the embedded one, or another whose address RPMA_TEST_ADDR is.
var local = cmp.Or(os.Getenv("RPMA_TEST_ADDR"), "127.0.0.1")

// onShm: the tests run on shared memory.
var onShm = os.Getenv("RDMANET_DEVICE") == "shm"

// localAny is any port of it.
var localAny = local + ":0"

// newPeer is a peer on the device. It must be closable in the end, and leave nothing registered.
func newPeer(t testing.TB) *rpma.Peer {
	t.Helper()
	d, err := rpma.LookupLocal(local)
	require.NoError(t, err)
	before, _, _ := rc.Usage()
	p, err := rpma.NewPeer(d)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Close())
		after, _, _ := rc.Usage()
		require.Equal(t, before, after)
	})
	return p
}

func alloc(t testing.TB, p *rpma.Peer, n int, u rpma.Usage) *rpma.MR {
	t.Helper()
	m, err := p.Alloc(n, u)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// remote is a region as its peer knows it.
func remote(t testing.TB, m *rpma.MR) rpma.RemoteMR {
	t.Helper()
	b, err := m.MarshalBinary()
	require.NoError(t, err)
	r, err := rpma.ParseRemoteMR(b)
	require.NoError(t, err)
	return r
}

// pairOptions say how two ends are connected.
type pairOptions struct {
	client, server         *rpma.ConnConfig
	clientData, serverData []byte
	// before is called with either request before it is answered.
	before func(client, server *rpma.ConnReq)
}

// pair connects two ends of peers.
func pair(t testing.TB, client, server *rpma.Peer, o pairOptions) (*rpma.Conn, *rpma.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ep, err := server.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	cr, err := client.NewConnReq(ctx, ep.Addr().String(), o.client)
	require.NoError(t, err)
	accepted := make(chan *rpma.Conn, 1)
	go func() {
		var s *rpma.Conn
		sr, err := ep.Accept(ctx, o.server)
		if err == nil {
			if o.before != nil {
				o.before(cr, sr)
			}
			s, err = sr.Connect(ctx, o.serverData)
		}
		assert.NoError(t, err)
		accepted <- s
	}()
	c, err := cr.Connect(ctx, o.clientData)
	require.NoError(t, err)
	s := <-accepted
	require.NotNil(t, s)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	})
	return c, s
}

// next waits for a completion.
func next(t testing.TB, q *rpma.CQ) rpma.Completion {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for c, err := range q.Completions(ctx) {
		require.NoError(t, err)
		return c
	}
	panic("unreachable")
}
