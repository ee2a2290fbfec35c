package verbstest

import (
	"bytes"
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var lookupTests = []test{
	{"Found", testLookupFound},
	{"NotFound", testLookupNotFound},
	{"Rejected", testLookupRejected},
	{"TimedOut", testLookupTimedOut},
	{"Cancelled", testLookupCancelled},
	{"Closed", testLookupClosed},
	{"Once", testLookupOnce},
	{"TooMuch", testLookupTooMuch},
	{"Backlog", testLookupBacklog},
	{"ListenerClosed", testLookupListenerClosed},
}

// padded is private data as it arrives.
func padded(data []byte, n int) []byte {
	return append(bytes.Clone(data), make([]byte, n-len(data))...)
}

// testLookupFound looks at all that both sides are told.
func testLookupFound(s *suite, t *testing.T) {
	l := s.listenUD(t)
	b := s.bound(t)
	ask, answer := pattern(verbs.MaxPrivateSIDRREQ, 1), pattern(verbs.MaxPrivateSIDRREP, 2)
	id := s.activeUD(t, l.Addr().Port())
	require.Nil(t, id.Request())
	require.Equal(t, s.Dial.WithZone(""), id.RemoteAddr().Addr().WithZone(""))
	require.NotZero(t, id.LocalAddr().Port())
	found := startLookup(s.ctx(t), id, ask)
	req := s.requestUD(t, l)
	require.Equal(t, ask, req.Request().PrivateData)
	require.Equal(t, l.Addr().Port(), req.LocalAddr().Port())
	require.Equal(t, id.LocalAddr().Port(), req.RemoteAddr().Port())
	require.Equal(t, id.LocalAddr().Addr().WithZone(""), req.RemoteAddr().Addr().WithZone(""))
	require.NoError(t, req.Reply(b.qp.Num(), 0, answer))
	p, err := found()
	require.NoError(t, err)
	require.Equal(t, b.qp.Num(), p.QPN)
	require.Equal(t, uint32(verbs.UDPQKey), p.QKey)
	require.Equal(t, answer, p.PrivateData)
	require.Equal(t, s.Dial, p.AH.Remote)
	require.Equal(t, id.LocalAddr().Addr(), p.AH.Local)
	require.ErrorIs(t, req.Reply(b.qp.Num(), 0, nil), syscall.EINVAL, "a second answer")
	require.ErrorIs(t, req.Reject(nil), syscall.EINVAL, "a second answer")

	// The queue pair may be that of the request itself.
	other := s.activeUD(t, l.Addr().Port())
	found = startLookup(s.ctx(t), other, nil)
	e := s.udEnd(t, s.requestUD(t, l))
	require.Equal(t, make([]byte, verbs.MaxPrivateSIDRREQ), e.id.Request().PrivateData)
	require.NoError(t, e.ud.Reply(e.qp.Num(), 0, nil))
	p, err = found()
	require.NoError(t, err)
	a := s.udEnd(t, other)
	a.goes(a.dest(p), e)
	require.EqualValues(t, 2, l.Stats().Requests)
}

// refusal checks that an error is a refusal of that status.
func refusal(t testing.TB, err error, status int) (private []byte) {
	t.Helper()
	rej := new(verbs.LookupError)
	require.ErrorAs(t, err, &rej)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Equal(t, status, rej.Status)
	return rej.PrivateData
}

// testLookupNotFound: nobody serves the port, or the service is one of connections.
func testLookupNotFound(s *suite, t *testing.T) {
	s.bound(t) // somebody is there to say so
	l := s.listenUD(t)
	port := l.Addr().Port()
	require.NoError(t, l.Close())
	_, err := s.activeUD(t, port).Lookup(s.ctx(t), nil)
	refusal(t, err, verbs.SIDRUnsupported)
	// A port space is by itself.
	c := s.listen(t)
	_, err = s.activeUD(t, c.Addr().Port()).Lookup(s.ctx(t), nil)
	refusal(t, err, verbs.SIDRUnsupported)
	u := s.listenUD(t)
	id := s.resolve(t, u.Addr().Port(), nil)
	pd := newPD(t, id.Device())
	var q queue
	q.init(s, t, id.Device(), 8)
	qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: q.cq, RecvCQ: q.cq})
	require.NoError(t, err)
	t.Cleanup(func() { closeIt(t, "QP", qp) })
	_, err = id.Connect(s.ctx(t), &verbs.ConnParam{})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func testLookupRejected(s *suite, t *testing.T) {
	l := s.listenUD(t)
	id := s.activeUD(t, l.Addr().Port())
	found := startLookup(s.ctx(t), id, nil)
	require.NoError(t, s.requestUD(t, l).Reject([]byte("not you")))
	_, err := found()
	if p := refusal(t, err, verbs.SIDRRejected); p != nil {
		require.Equal(t, padded([]byte("not you"), verbs.MaxPrivateSIDRREP), p)
	}
	// Giving a request up refuses it.
	found = startLookup(s.ctx(t), s.activeUD(t, l.Addr().Port()), nil)
	require.NoError(t, s.requestUD(t, l).Close())
	_, err = found()
	refusal(t, err, verbs.SIDRRejected)
}

// testLookupTimedOut: the service does not answer in time. It may answer later, and nothing comes of it.
func testLookupTimedOut(s *suite, t *testing.T) {
	l := s.listenUD(t)
	ctx, cancel := context.WithTimeout(s.ctx(t), 50*time.Millisecond)
	defer cancel()
	id := s.activeUD(t, l.Addr().Port())
	_, err := id.Lookup(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, s.requestUD(t, l).Reply(77, 0, nil))
	require.NoError(t, id.Close())
}

func testLookupCancelled(s *suite, t *testing.T) {
	l := s.listenUD(t)
	ctx, cancel := context.WithCancel(s.ctx(t))
	id := s.activeUD(t, l.Addr().Port())
	found := startLookup(ctx, id, nil)
	req := s.requestUD(t, l)
	cancel()
	_, err := found()
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, req.Close())
	_, err = s.activeUD(t, l.Addr().Port()).Lookup(ctx, nil)
	require.ErrorIs(t, err, context.Canceled, "before it has begun")
}

// testLookupClosed closes the identifier under a lookup.
func testLookupClosed(s *suite, t *testing.T) {
	l := s.listenUD(t)
	id := s.activeUD(t, l.Addr().Port())
	found := startLookup(s.ctx(t), id, nil)
	s.requestUD(t, l)
	require.NoError(t, id.Close())
	_, err := found()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = id.Lookup(s.ctx(t), nil)
	require.ErrorIs(t, err, net.ErrClosed)
}

func testLookupOnce(s *suite, t *testing.T) {
	l := s.listenUD(t)
	id := s.activeUD(t, l.Addr().Port())
	found := startLookup(s.ctx(t), id, nil)
	require.NoError(t, s.requestUD(t, l).Reply(77, 0, nil))
	_, err := found()
	require.NoError(t, err)
	_, err = id.Lookup(s.ctx(t), nil)
	require.ErrorIs(t, err, syscall.EINVAL)
}

func testLookupTooMuch(s *suite, t *testing.T) {
	l := s.listenUD(t)
	id := s.activeUD(t, l.Addr().Port())
	_, err := id.Lookup(s.ctx(t), make([]byte, verbs.MaxPrivateSIDRREQ+1))
	require.ErrorIs(t, err, syscall.EINVAL)
	found := startLookup(s.ctx(t), s.activeUD(t, l.Addr().Port()), nil)
	req := s.requestUD(t, l)
	require.ErrorIs(t, req.Reply(77, 0, make([]byte, verbs.MaxPrivateSIDRREP+1)), syscall.EINVAL)
	require.ErrorIs(t, req.Reject(make([]byte, verbs.MaxPrivateSIDRREP+1)), syscall.EINVAL)
	require.NoError(t, req.Reply(77, 0, nil), "it may still be answered")
	_, err = found()
	require.NoError(t, err)
}

// testLookupBacklog: what a listener has no room for is dropped, and comes again.
func testLookupBacklog(s *suite, t *testing.T) {
	attr := s.listenAttr(0)
	attr.PortSpace, attr.Backlog = verbs.PSUDP, 2
	l, err := s.Passive.Listen(s.ctx(t), attr)
	require.NoError(t, err)
	t.Cleanup(func() { closeIt(t, "listener", l) })
	var found []func() (*verbs.UDParam, error)
	for range 3 {
		found = append(found, startLookup(s.ctx(t), s.activeUD(t, l.Addr().Port()), nil))
	}
	if !s.UncountedDrops {
		require.Eventually(t, func() bool { return l.Stats().Dropped > 0 }, s.Timeout, time.Millisecond)
	}
	for range 3 {
		require.NoError(t, s.requestUD(t, l).Reply(78, 0, nil))
	}
	for _, f := range found {
		p, err := f()
		require.NoError(t, err)
		require.EqualValues(t, 78, p.QPN)
	}
}

// testLookupListenerClosed: requests that nobody took are refused when the listener closes; those that were taken live on.
func testLookupListenerClosed(s *suite, t *testing.T) {
	l := s.listenUD(t)
	first := startLookup(s.ctx(t), s.activeUD(t, l.Addr().Port()), nil)
	req := s.requestUD(t, l)
	second := startLookup(s.ctx(t), s.activeUD(t, l.Addr().Port()), nil)
	require.Eventually(t, func() bool { return l.Stats().Requests == 2 }, s.Timeout, time.Millisecond)
	require.NoError(t, l.Close())
	_, err := second()
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, req.Reply(79, 0, nil))
	p, err := first()
	require.NoError(t, err)
	require.EqualValues(t, 79, p.QPN)
	_, err = l.GetRequest(s.ctx(t))
	require.ErrorIs(t, err, net.ErrClosed)
}
