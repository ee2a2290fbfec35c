package verbstest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var manyTests = []test{
	{"Connections", testConnections},
	{"Churn", testChurn},
}

// testConnections makes many connections at once, on one pair of completion
// queues and domains, and uses them all.
func testConnections(s *suite, t *testing.T) {
	n := s.Connections
	l := s.listen(t)
	// A first connection owns what the others share.
	first := func(o *options) { o.depth = 8 * (n + 1); o.mem = 64 * (n + 1) * 4 }
	a0, b0 := s.pairOf(t, s.options([]option{first}), s.options([]option{first}))

	type conn struct {
		id verbs.CMID
		qp verbs.QP
	}
	param := s.options(nil).param
	create := func(id verbs.CMID, e *end) (conn, error) {
		attr := s.options(nil).init
		attr.MaxSendWR, attr.MaxRecvWR = 4, 4
		attr.SendCQ, attr.RecvCQ = e.cq, e.cq
		qp, err := id.CreateQP(e.pd, &attr)
		if err != nil {
			_ = id.Close()
			return conn{}, err
		}
		c := conn{id, qp}
		_, err = qp.PostRecv([]verbs.RecvWR{{ID: uint64(qp.Num()), SGL: []verbs.SGE{{Addr: e.mr.Addr(), Length: 8, LKey: e.mr.LKey()}}}})
		return c, err
	}
	var mu sync.Mutex
	active, passive := map[uint32]conn{}, map[uint32]conn{}
	closeAll := func(m map[uint32]conn) {
		for _, c := range m {
			closeIt(t, "QP", c.qp)
			closeIt(t, "CMID", c.id)
		}
	}
	t.Cleanup(func() { closeAll(active); closeAll(passive) })

	ctx, cancel := context.WithTimeout(context.Background(), 3*s.Timeout)
	defer cancel()
	var g group
	g.run(func() error {
		for range n {
			id, err := l.GetRequest(ctx)
			if err != nil {
				return fmt.Errorf("GetRequest: %w", err)
			}
			c, err := create(id, b0)
			if err != nil {
				return fmt.Errorf("passive CreateQP: %w", err)
			}
			mu.Lock()
			passive[c.qp.Num()] = c
			mu.Unlock()
			if err := id.Accept(&param); err != nil {
				return fmt.Errorf("call of Accept: %w", err)
			}
		}
		return nil
	})
	for range n {
		g.run(func() error {
			id, err := s.Active.Resolve(ctx, s.resolveAttr(l.Addr().Port(), nil))
			if err != nil {
				return fmt.Errorf("call of Resolve: %w", err)
			}
			c, err := create(id, a0)
			if err != nil {
				return fmt.Errorf("active CreateQP: %w", err)
			}
			mu.Lock()
			active[c.qp.Num()] = c
			mu.Unlock()
			if _, err := id.Connect(ctx, &param); err != nil {
				return fmt.Errorf("call of Connect: %w", err)
			}
			return nil
		})
	}
	g.wait(t)
	require.Len(t, active, n, "queue pair numbers are distinct")
	require.Len(t, passive, n, "queue pair numbers are distinct")

	// Each active end sends its number, each passive one answers with it.
	for num, c := range active {
		wr := verbs.SendWR{ID: 1, Op: verbs.OpSendWithImm, Imm: num}
		k, err := c.qp.PostSend([]verbs.SendWR{wr})
		require.NoError(t, err)
		require.Equal(t, 1, k)
	}
	partner := map[uint32]uint32{}
	for range n {
		wc := b0.wait(1)[0]
		require.Equal(t, verbs.Success, wc.Status)
		require.Equal(t, uint64(wc.QPN), wc.ID)
		require.Contains(t, passive, wc.QPN)
		require.Contains(t, active, wc.Imm)
		_, twice := partner[wc.QPN]
		require.False(t, twice)
		partner[wc.QPN] = wc.Imm
		_, err := passive[wc.QPN].qp.PostSend([]verbs.SendWR{{ID: 1, Op: verbs.OpSendWithImm, Imm: wc.Imm}})
		require.NoError(t, err)
	}
	for range n {
		wc := a0.wait(1)[0]
		require.Equal(t, verbs.Success, wc.Status)
		require.Equal(t, wc.QPN, wc.Imm, "an answer to another connection")
		require.Equal(t, uint64(wc.QPN), wc.ID)
	}
}

// testChurn makes and breaks connections to one port, several at a time.
func testChurn(s *suite, t *testing.T) {
	const workers, each = 4, 25
	l := s.listen(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*s.Timeout)
	defer cancel()
	param := s.options(nil).param
	// use makes a queue pair, connects it by f and closes everything.
	use := func(id verbs.CMID, f func() error) error {
		pd, err := id.Device().AllocPD()
		if err != nil {
			return err
		}
		cq, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 16})
		if err != nil {
			return err
		}
		qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
		if err != nil {
			return err
		}
		err = f()
		for _, c := range []interface{ Close() error }{qp, id, cq, pd} {
			if cerr := c.Close(); err == nil && cerr != nil {
				err = fmt.Errorf("closing %T: %w", c, cerr)
			}
		}
		return err
	}
	var g group
	for range workers {
		g.run(func() error {
			for range each {
				id, err := l.GetRequest(ctx)
				if err != nil {
					return fmt.Errorf("GetRequest: %w", err)
				}
				// The peer is gone as soon as it is connected.
				over := make(chan struct{})
				var once sync.Once
				id.SetHandler(func(ev verbs.Event) {
					if ev.Type != verbs.EventEstablished {
						once.Do(func() { close(over) })
					}
				})
				if err := use(id, func() error {
					if err := id.Accept(&param); err != nil {
						return fmt.Errorf("call of Accept: %w", err)
					}
					select {
					case <-over:
						return nil
					case <-ctx.Done():
						return fmt.Errorf("the peer's disconnect: %w", ctx.Err())
					}
				}); err != nil {
					return err
				}
			}
			return nil
		})
		g.run(func() error {
			for range each {
				id, err := s.Active.Resolve(ctx, s.resolveAttr(l.Addr().Port(), nil))
				if err != nil {
					return fmt.Errorf("call of Resolve: %w", err)
				}
				if err := use(id, func() error {
					_, err := id.Connect(ctx, &param)
					return err
				}); err != nil {
					return fmt.Errorf("active: %w", err)
				}
			}
			return nil
		})
	}
	g.wait(t)
}
