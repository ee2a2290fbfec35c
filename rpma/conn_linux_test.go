package rpma_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

func TestPrivateData(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	long := func(n int) []byte { return []byte(strings.Repeat("x", n)) }
	padded := func(n, to int) []byte {
		if onShm {
			return long(n)
		}
		return append(long(n), make([]byte, to-n)...)
	}
	for _, n := range []int{0, 1, 55, 56} {
		m := max(0, min(196, 4*n-28))
		var asked []byte
		c, s := pair(t, p, q, pairOptions{clientData: long(n), serverData: long(m), before: func(cr, sr *rpma.ConnReq) {
			asked = sr.PrivateData()
			assert.Nil(t, cr.PrivateData())
		}})
		assert.Equal(t, padded(n, 56), asked)
		assert.Equal(t, asked, s.PrivateData())
		assert.Equal(t, padded(m, 196), c.PrivateData())
	}
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	cr, err := p.NewConnReq(t.Context(), ep.Addr().String(), nil)
	require.NoError(t, err)
	_, err = cr.Connect(t.Context(), long(57))
	require.ErrorIs(t, err, rpma.ErrInvalid)
	require.ErrorIs(t, cr.Reject(nil), rpma.ErrInvalid, "nobody has asked")
	refused := make(chan error, 1)
	go func() { _, err := cr.Connect(t.Context(), long(56)); refused <- err }() // it is not used up
	sr, err := ep.Accept(t.Context(), nil)
	require.NoError(t, err)
	_, err = sr.Connect(t.Context(), long(197))
	require.ErrorIs(t, err, rpma.ErrInvalid)
	require.ErrorIs(t, sr.Reject(long(149)), rpma.ErrInvalid)
	require.NoError(t, sr.Reject(long(148)))
	_, err = sr.Connect(t.Context(), nil)
	require.ErrorIs(t, err, rpma.ErrInvalid, "used up")
	require.NoError(t, sr.Close())
	require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
	require.NoError(t, cr.Close())
}

// TestCloseWhileConnecting: either side's request can be given up at any moment.
func TestCloseWhileConnecting(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	for i := range 10 {
		cr, err := p.NewConnReq(t.Context(), ep.Addr().String(), nil)
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() { _, err := cr.Connect(context.Background(), nil); result <- err }()
		time.Sleep(time.Duration(i) * time.Millisecond)
		require.NoError(t, cr.Close())
		switch err := <-result; {
		case errors.Is(err, net.ErrClosed):
		default: // Close was first
			require.ErrorIs(t, err, rpma.ErrInvalid)
		}
		require.NoError(t, cr.Close())
	}
}

func TestRefused(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	addr := ep.Addr().String()
	for name, refuse := range map[string]func(r *rpma.ConnReq) error{
		"rejected": func(r *rpma.ConnReq) error { return r.Reject([]byte("no")) },
		"closed":   func(r *rpma.ConnReq) error { return r.Close() },
	} {
		var refusing sync.WaitGroup
		refusing.Go(func() {
			r, err := ep.Accept(context.Background(), nil)
			if assert.NoError(t, err) {
				assert.NoError(t, refuse(r))
			}
		})
		_, err = p.Dial(t.Context(), addr, nil)
		refusing.Wait() // the dialer knows before the request has closed
		require.ErrorIs(t, err, syscall.ECONNREFUSED, name)
		require.ErrorIs(t, err, rpma.ErrProvider)
		var rej *rpma.RejectError
		require.ErrorAs(t, err, &rej)
		require.Equal(t, 28, rej.Reason)
		require.Equal(t, rpma.EventRejected, rpma.EventOf(err))
		if name == "rejected" {
			require.Equal(t, "no\x00", string(rej.PrivateData[:3]))
		}
	}
	require.NoError(t, ep.Close())
	require.NoError(t, ep.Close())
	_, err = ep.Accept(t.Context(), nil)
	require.ErrorIs(t, err, net.ErrClosed)
	// Nobody listens: at once, as often as it is tried.
	for range 20 {
		_, err = p.Dial(t.Context(), addr, nil)
		var rej *rpma.RejectError
		require.ErrorAs(t, err, &rej)
		require.Equal(t, 8, rej.Reason)
	}
	ep1, err := q.Listen(addr)
	require.NoError(t, err)
	defer ep1.Close()
	_, err = q.Listen(addr)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}

func TestContexts(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err = ep.Accept(soon(), nil)
	require.ErrorIs(t, err, rpma.ErrNoEvent)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cr, err := p.NewConnReq(t.Context(), ep.Addr().String(), nil)
	require.NoError(t, err)
	_, err = cr.Connect(soon(), nil) // nobody accepts
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, rpma.EventUndefined, rpma.EventOf(err))
	// The request has gone with its peer; the kernel does not tell before it is answered, and shared memory a little later.
	if r, err := ep.Accept(soon(), nil); err == nil {
		require.True(t, local != "127.0.0.1" || onShm)
		_, err = r.Connect(t.Context(), nil)
		require.ErrorIs(t, err, syscall.ECONNABORTED)
	} else {
		require.ErrorIs(t, err, rpma.ErrNoEvent)
	}

	c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SharedChannel: true, SQSize: 2}})
	ev, err := c.NextEvent(t.Context())
	require.NoError(t, err)
	require.Equal(t, rpma.EventEstablished, ev)
	_, err = c.NextEvent(soon())
	require.ErrorIs(t, err, rpma.ErrNoEvent)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = c.Wait(soon())
	require.ErrorIs(t, err, rpma.ErrNoCompletion)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, s.CQ().Wait(soon()), context.DeadlineExceeded)
	for range 3 { // the peer has no receive; what is abandoned does not come in the way of others
		err = c.Do(soon(), rpma.Send(rpma.Local{}), rpma.Send(rpma.Local{}), rpma.Send(rpma.Local{}))
		require.ErrorIs(t, err, rpma.ErrNoCompletion)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, c.Do(canceled, rpma.Send(rpma.Local{})), context.Canceled)
	for i := range 2 {
		require.NoError(t, s.PostRecv(rpma.Local{}, uint64(i)))
		next(t, s.CQ())
	}
	require.NoError(t, s.PostRecv(rpma.Local{}, 2))
	require.NoError(t, c.Do(t.Context(), rpma.Send(rpma.Local{})))
}

// TestEvents: either end sees the connection end, without doing anything for it.
func TestEvents(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	for name, x := range map[string]struct {
		end   func(c *rpma.Conn) error
		twice bool
	}{
		"disconnect": {(*rpma.Conn).Disconnect, true},
		"close":      {(*rpma.Conn).Close, true},
	} {
		c, s := pair(t, p, q, pairOptions{})
		require.NoError(t, c.Err())
		require.NoError(t, c.PostRecv(rpma.Local{}, 1))
		require.NoError(t, s.PostRecv(rpma.Local{}, 2))
		require.NoError(t, x.end(c), name)
		if x.twice {
			require.NoError(t, x.end(c), name)
		}
		for _, end := range []*rpma.Conn{c, s} {
			select {
			case <-end.Done():
			case <-time.After(10 * time.Second):
				t.Fatal("no end")
			}
			for _, want := range []rpma.Event{rpma.EventEstablished, rpma.EventClosed} {
				ev, err := end.NextEvent(t.Context())
				require.NoError(t, err)
				require.Equal(t, want, ev)
			}
			ev, err := end.NextEvent(t.Context())
			require.ErrorIs(t, err, rpma.ErrNoEvent)
			require.Equal(t, rpma.EventUndefined, ev)
		}
		require.ErrorIs(t, c.Err(), net.ErrClosed)
		require.ErrorIs(t, s.Err(), io.EOF)
		// What was posted is flushed, then the queue tells that nothing more comes.
		for i, end := range []*rpma.Conn{c, s} {
			var got []rpma.Completion
			var err error
			for wc, e := range end.CQ().Completions(t.Context()) {
				if err = e; e == nil {
					got = append(got, wc)
				}
			}
			require.Len(t, got, 1, "%s %d", name, i)
			require.Equal(t, uint64(i+1), got[0].ID)
			require.Equal(t, rpma.StatusFlushed, got[0].Status)
			require.ErrorIs(t, got[0].Err(), syscall.ECONNRESET)
			require.ErrorIs(t, err, end.Err())
		}
		// Operations on what is over: flushed, or refused.
		err := s.Do(t.Context(), rpma.Send(rpma.Local{}))
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, err, rpma.ErrProvider)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.Do(t.Context(), rpma.Send(rpma.Local{})), net.ErrClosed)
		_, err = s.Post(rpma.Send(rpma.Local{}))
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, s.PostRecv(rpma.Local{}, 1), net.ErrClosed)
	}
}

// TestRemoteAccess: memory that is no more ends the connection, at both ends, and Do says why.
func TestRemoteAccess(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	own := alloc(t, p, 100, clientUse)
	for _, post := range []bool{false, true} {
		c, s := pair(t, p, q, pairOptions{})
		far, err := q.Alloc(100, serverUse)
		require.NoError(t, err)
		op := rpma.Write(remote(t, far).Slice(0, 50), own.Slice(0, 50))
		op.ID, op.Flags = 42, rpma.CompletionOnError
		require.NoError(t, c.Do(t.Context(), op))
		require.NoError(t, far.Close())
		if post {
			behind := rpma.Send(rpma.Local{})
			behind.ID = 43
			_, err = c.Post(op, behind)
			require.NoError(t, err)
			got := next(t, c.CQ())
			require.Equal(t, uint64(42), got.ID, "a failure always completes")
			require.Equal(t, rpma.StatusRemoteAccess, got.Status)
			require.ErrorIs(t, got.Err(), syscall.EACCES)
			got = next(t, c.CQ())
			require.Equal(t, uint64(43), got.ID)
			require.Equal(t, rpma.StatusFlushed, got.Status)
		} else {
			err = c.Do(t.Context(), rpma.Write(rpma.Remote{}, rpma.Local{}), op, rpma.Send(rpma.Local{}))
			require.ErrorIs(t, err, syscall.EACCES)
			var ce *rpma.CompletionError
			require.ErrorAs(t, err, &ce)
			require.Equal(t, rpma.CompletionError{ID: 42, Status: rpma.StatusRemoteAccess, QPNum: c.QPNum(), VendorErr: ce.VendorErr}, *ce)
			require.ErrorContains(t, err, "rpma: write: ")
		}
		<-c.Done()
		require.ErrorIs(t, c.Err(), syscall.EACCES)
		for _, want := range []rpma.Event{rpma.EventEstablished, rpma.EventLost} {
			ev, err := c.NextEvent(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, ev)
		}
		<-s.Done()
		require.Error(t, s.Err())
	}
}

// TestLongMessage: a message longer than its receive fails at both ends.
func TestLongMessage(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	c, s := pair(t, p, q, pairOptions{})
	own, in := alloc(t, p, 100, clientUse), alloc(t, q, 100, serverUse)
	require.NoError(t, s.PostRecv(in.Slice(0, 10), 3))
	err := c.Do(t.Context(), rpma.Send(own.Slice(0, 11)))
	var ce *rpma.CompletionError
	require.ErrorAs(t, err, &ce)
	require.Contains(t, []rpma.Status{rpma.StatusRemoteInvalid, rpma.StatusRemoteOp}, ce.Status)
	got := next(t, s.CQ())
	require.Equal(t, uint64(3), got.ID)
	<-s.Done()
	if got.Status != rpma.StatusLocalQP { // as rdma_rxe has it
		require.Equal(t, rpma.StatusLocalLength, got.Status)
		require.ErrorIs(t, s.Err(), syscall.EMSGSIZE)
	}
}

// TestLongMessageOfShared: a connection whose receives are shared is told too.
func TestLongMessageOfShared(t *testing.T) {
	for _, completions := range []int{0, -1} {
		p, q := newPeer(t), newPeer(t)
		srq, err := q.NewSRQ(&rpma.SRQConfig{RCQSize: completions})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, srq.Close()) })
		c, s := pair(t, p, q, pairOptions{server: &rpma.ConnConfig{SRQ: srq}})
		other, _ := pair(t, p, q, pairOptions{server: &rpma.ConnConfig{SRQ: srq}})
		own, in := alloc(t, p, 100, clientUse), alloc(t, q, 100, serverUse)
		require.NoError(t, srq.PostRecv(in.Slice(0, 10), 3))
		require.Error(t, c.Do(t.Context(), rpma.Send(own.Slice(0, 11))))
		<-s.Done()
		require.Error(t, s.Err())
		require.NoError(t, srq.PostRecv(in.Slice(0, 100), 4))
		require.NoError(t, other.Do(t.Context(), rpma.Send(own.Slice(0, 11))), "no other notices")
	}
}

// TestNoRoom: a connection without queues says so.
func TestNoRoom(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: -1, RQSize: -1}})
	require.ErrorIs(t, c.Do(t.Context(), rpma.Send(rpma.Local{})), rpma.ErrInvalid)
	_, err := c.Post(rpma.Send(rpma.Local{}))
	require.ErrorIs(t, err, rpma.ErrQueueFull)
	require.ErrorIs(t, c.PostRecv(rpma.Local{}, 1), rpma.ErrQueueFull)
	own, far := alloc(t, q, 8, clientUse), alloc(t, p, 8, serverUse)
	require.NoError(t, s.Do(t.Context(), rpma.Write(remote(t, far).Slice(0, 8), own.Slice(0, 8))))
	_, err = p.NewConnReq(t.Context(), local+":1", &rpma.ConnConfig{CQSize: -1})
	require.ErrorIs(t, err, rpma.ErrInvalid)
	_, err = q.NewSRQ(&rpma.SRQConfig{RQSize: -1})
	require.ErrorIs(t, err, rpma.ErrInvalid)
	_, err = p.NewConnReq(t.Context(), local+":1", &rpma.ConnConfig{CQSize: 1 << 30})
	require.ErrorIs(t, err, rpma.ErrProvider)
	_, err = p.NewConnReq(t.Context(), local+":1", &rpma.ConnConfig{SQSize: 1 << 28})
	require.ErrorIs(t, err, rpma.ErrProvider)
}

// TestCloseWithEverything: closing one end or the other, whatever goes on, ends every call, and nothing is left.
func TestCloseWithEverything(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	own, far := alloc(t, p, 4096, clientUse), alloc(t, q, 4096, serverUse)
	r := remote(t, far)
	rounds := 12
	for round := range rounds {
		c, s := pair(t, p, q, pairOptions{
			client: &rpma.ConnConfig{SharedChannel: true, RCQSize: 5, SQSize: 1 + round%3}, server: &rpma.ConnConfig{RQSize: 30},
		})
		var wg sync.WaitGroup
		run := func(f func() error) {
			wg.Go(func() {
				for f() == nil {
					runtime.Gosched()
				}
			})
		}
		ctx, cancel := context.WithCancel(context.Background())
		for range 2 {
			run(func() error {
				return c.Do(ctx, rpma.Write(r.Slice(0, 8), own.Slice(0, 8)), rpma.Flush(r.Slice(0, 8), rpma.Visibility))
			})
			run(func() error { return c.Do(ctx, rpma.Read(own.Slice(100, 3000), r.Slice(0, 3000))) })
		}
		run(func() error { _, err := c.Post(rpma.Write(r.Slice(0, 100), own.Slice(0, 100))); return unlessFull(err) })
		run(func() error { return unlessFull(c.PostRecv(own.Slice(0, 10), 1)) })
		run(func() error { return unlessFull(s.PostRecv(far.Slice(0, 10), 1)) })
		run(func() error { _, err := s.Post(rpma.Send(far.Slice(0, 5))); return unlessFull(err) })
		run(func() error { _, err := s.CQ().Poll(make([]rpma.Completion, 3)); return err })
		run(func() error { return s.CQ().Wait(ctx) })
		run(func() error {
			cq, _, err := c.Wait(ctx)
			if err == nil {
				_, err = cq.Poll(make([]rpma.Completion, 3))
			}
			return err
		})
		run(func() error { _, err := c.NextEvent(ctx); return err })
		run(func() error {
			c.ApplyPeerConfig(rpma.PeerConfig{DirectWriteToPMem: true})
			c.PrivateData()
			return c.Err()
		})
		time.Sleep(time.Duration(round) * time.Millisecond / 2)
		ends := []func() error{c.Close, s.Close, c.Disconnect, s.Disconnect}
		for i := range ends {
			wg.Go(func() { assert.NoError(t, ends[(i+round)%len(ends)]()) })
			if round%2 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			buf := make([]byte, 1<<20)
			t.Fatalf("hangs\n%s", buf[:runtime.Stack(buf, true)])
		}
		cancel()
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	}
}

func unlessFull(err error) error {
	if err == rpma.ErrQueueFull {
		return nil
	}
	return err
}

// TestMixed: Do, Post and Poll from many goroutines at once; everyone gets what is theirs.
func TestMixed(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	own, far := alloc(t, p, 1<<16, clientUse), alloc(t, q, 1<<16, serverUse)
	r := remote(t, far)
	c, _ := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{SQSize: 7}})
	const posts = 600
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() { // each in a place of its own
			at := 64 * g
			for i := range 150 {
				own.Bytes()[at] = byte(i)
				own.Bytes()[at+32] = ^byte(i)
				err := c.Do(t.Context(),
					rpma.Write(r.Slice(uint64(at), 8), own.Slice(at, 8)),
					rpma.AtomicWrite(r.Slice(uint64(at)+8, 8), [8]byte{byte(i)}),
					rpma.Read(own.Slice(at+32, 16), r.Slice(uint64(at), 16)))
				if !assert.NoError(t, err) || !assert.Equal(t, []byte{byte(i), byte(i)}, []byte{own.Bytes()[at+32], own.Bytes()[at+40]}) {
					return
				}
			}
		})
	}
	wg.Go(func() {
		op := rpma.Write(r.Slice(4096, 100), own.Slice(4096, 100))
		for i := 0; i < posts; {
			op.ID, op.Flags = uint64(i), rpma.Flags(i%2)
			switch _, err := c.Post(op); err {
			case nil:
				i++
			case rpma.ErrQueueFull:
				runtime.Gosched()
			default:
				t.Error(err)
				return
			}
		}
	})
	want := uint64(0)
	for wc, err := range c.CQ().Completions(t.Context()) {
		require.NoError(t, err)
		require.NoError(t, wc.Err())
		require.Equal(t, want, wc.ID)
		if want += 2; want >= posts {
			break
		}
	}
	wg.Wait()
	n, err := c.CQ().Poll(make([]rpma.Completion, 1))
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestManyConnections are made and closed at a time.
func TestManyConnections(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	own, far := alloc(t, p, 64, clientUse), alloc(t, q, 64, serverUse)
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := ep.Accept(ctx, nil)
			if err != nil {
				return
			}
			wg.Go(func() {
				s, err := r.Connect(ctx, nil)
				if assert.NoError(t, err) {
					<-s.Done()
					assert.ErrorIs(t, s.Err(), io.EOF)
					assert.NoError(t, s.Close())
				}
			})
		}
	})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 10 {
				c, err := p.Dial(ctx, ep.Addr().String(), nil)
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, c.Do(ctx, rpma.Write(remote(t, far).Slice(0, 64), own.Slice(0, 64))))
				assert.NoError(t, c.Close())
			}
		})
	}
	clients.Wait()
	require.NoError(t, ep.Close())
	wg.Wait()
}

// TestCloseInAnyOrder: regions before connections, listeners before requests.
func TestCloseInAnyOrder(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	cr, err := p.NewConnReq(t.Context(), ep.Addr().String(), nil)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() { _, err := cr.Connect(context.Background(), nil); result <- err }()
	sr, err := ep.Accept(t.Context(), nil)
	require.NoError(t, err)
	m, err := q.Alloc(100, serverUse)
	require.NoError(t, err)
	require.NoError(t, sr.PostRecv(m.Slice(0, 100), 1))
	require.NoError(t, ep.Close())
	require.NoError(t, m.Close(), "though a receive names it")
	require.NoError(t, sr.Close())
	require.NoError(t, sr.Close())
	require.ErrorIs(t, <-result, syscall.ECONNREFUSED)
	require.NoError(t, cr.Close())
	cr, err = p.NewConnReq(t.Context(), local+":9", nil)
	require.NoError(t, err)
	require.NoError(t, cr.Close(), "never connected")
}
