package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// node is one connection with a buffer for each message of either way.
type node struct {
	id     verbs.CMID
	pd     verbs.PD
	cq     [2]verbs.CQ // of sends, of receives
	qp     verbs.QP
	arena  verbs.Arena
	mr     verbs.MR
	size   int
	recvs  int         // posted
	more   []io.Closer // of the domain
	events chan verbs.Event
}

const pageSize = 4096

var param = verbs.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5, RNRRetryCount: 7}

// dial resolves, prepares and connects.
func dial(ctx context.Context, p verbs.Provider, o *options) (*node, error) {
	n := &node{events: make(chan verbs.Event, 8)}
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: o.remote(), Handler: n.handle})
	if err != nil {
		return nil, err
	}
	n.id = id
	if err := n.prepare(o); err != nil {
		return nil, errors.Join(err, n.close())
	}
	conn := param
	conn.PrivateData = o.private
	if _, err := id.Connect(ctx, &conn); err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), n.close())
	}
	return n, nil
}

// accept takes one request and waits until the connection stands.
func accept(ctx context.Context, l verbs.Listener, o *options) (*node, error) {
	id, err := l.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	n := &node{id: id, events: make(chan verbs.Event, 8)}
	id.SetHandler(n.handle)
	if err := n.prepare(o); err != nil {
		return nil, errors.Join(err, n.close())
	}
	if err := id.Accept(&param); err != nil {
		return nil, errors.Join(fmt.Errorf("accept: %w", err), n.close())
	}
	if err := n.wait(ctx, verbs.EventEstablished); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) handle(e verbs.Event) { n.events <- e }

// wait takes the next event, which must be of type t.
func (n *node) wait(ctx context.Context, t verbs.EventType) error {
	select {
	case e := <-n.events:
		if e.Type != t || e.Err != nil {
			return fmt.Errorf("event %d (%w) instead of %d", e.Type, e.Err, t)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no event %d: %w", t, context.Cause(ctx))
	}
}

// prepare makes the queues and posts all receives.
func (n *node) prepare(o *options) (err error) {
	depth := max(o.messages, 1)
	n.size = o.size
	if n.pd, err = n.id.Device().AllocPD(); err != nil {
		return err
	}
	for i := range n.cq {
		if n.cq[i], err = n.id.Device().CreateCQ(&verbs.CQAttr{Depth: depth}); err != nil {
			return err
		}
	}
	n.qp, err = n.id.CreateQP(n.pd, &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: n.cq[0], RecvCQ: n.cq[1], MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	if err != nil {
		return err
	}
	bytes := (depth*2*max(o.size, 1) + pageSize - 1) / pageSize * pageSize
	if n.arena, err = n.pd.NewArena(bytes); err != nil {
		return err
	}
	if n.mr, err = n.pd.RegMR(n.arena.Bytes(), verbs.LocalWrite); err != nil {
		return err
	}
	for i := range o.messages {
		if k, err := n.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: n.sgl(i)}}); err != nil || k != 1 {
			return fmt.Errorf("receive %d: %d posted, %w", i, k, err)
		}
	}
	n.recvs = o.messages
	return nil
}

func (n *node) sgl(i int) []verbs.SGE {
	return []verbs.SGE{{Addr: n.mr.Addr() + uint64(i*n.size), Length: uint32(n.size), LKey: n.mr.LKey()}}
}

// send posts all messages and waits for their completions.
func (n *node) send(ctx context.Context, messages int) error {
	for i := range messages {
		sgl := n.sgl(n.recvs + i)
		for j := range n.size {
			n.arena.Bytes()[(n.recvs+i)*n.size+j] = byte(i + j)
		}
		if k, err := n.qp.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: sgl}}); err != nil || k != 1 {
			return fmt.Errorf("send %d: %d posted, %w", i, k, err)
		}
	}
	return n.poll(ctx, 0, messages)
}

// receive waits for messages of the right length.
func (n *node) receive(ctx context.Context, messages int) error { return n.poll(ctx, 1, messages) }

func (n *node) poll(ctx context.Context, which, count int) error {
	for i := range count {
		wc, err := n.completion(ctx, which)
		if err != nil {
			return fmt.Errorf("%d of %d: %w", i, count, err)
		}
		what := [2]string{"send", "receive"}[which]
		if wc.ID != uint64(i) {
			return fmt.Errorf("%s %d instead of %d", what, wc.ID, i)
		}
		if which == 1 && int(wc.ByteLen) != n.size {
			return fmt.Errorf("receive %d: %d bytes instead of %d", i, wc.ByteLen, n.size)
		}
	}
	return nil
}

// completion waits for the next one, which must be a success.
func (n *node) completion(ctx context.Context, which int) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for {
		k, err := n.cq[which].Poll(wcs[:])
		if err != nil {
			return wcs[0], err
		}
		if k != 0 {
			if wcs[0].Status != verbs.Success {
				return wcs[0], fmt.Errorf("work request %d: %w", wcs[0].ID, wcs[0].Status)
			}
			return wcs[0], nil
		}
		if ctx.Err() != nil {
			return wcs[0], fmt.Errorf("no completion: %w", context.Cause(ctx))
		}
		time.Sleep(100 * time.Microsecond) // the peer needs the processor
		runtime.Gosched()
	}
}

func (n *node) close() error {
	var errs []error
	if n.qp != nil {
		errs = append(errs, n.qp.Close())
	}
	errs = append(errs, n.id.Close())
	for _, cq := range n.cq {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	for _, c := range slices.Backward(n.more) {
		errs = append(errs, c.Close())
	}
	if n.mr != nil {
		errs = append(errs, n.mr.Close())
	}
	if n.arena != nil {
		errs = append(errs, n.arena.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	return errors.Join(errs...)
}
