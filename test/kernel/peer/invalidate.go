package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
)

func init() { modes["invalidate"] = invalidate }

// invalidate is the peer of testdata/invalidate.c. It writes into a memory window, invalidates it, has a region of its
// own invalidated, and writes once more, which must be refused.
func invalidate(ctx context.Context, p verbs.Provider, o *options) error {
	o.messages, o.size = 2, 3000
	n, err := dial(ctx, p, o)
	if err != nil {
		return err
	}
	if err := n.invalidate(ctx); err != nil {
		return errors.Join(err, n.close())
	}
	return n.close()
}

func (n *node) invalidate(ctx context.Context) error {
	mem := n.arena.Bytes()
	mine, err := n.pd.RegMR(mem, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteInvalidate)
	if err != nil {
		return err
	}
	n.more = append(n.more, mine)

	if wc, err := n.completion(ctx, 1); err != nil || wc.ByteLen != 12 {
		return fmt.Errorf("the window: %+v, %w", wc, err)
	}
	addr, key := binary.BigEndian.Uint64(mem), binary.BigEndian.Uint32(mem[8:])
	write := func(what string) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.Signaled, Inline: []byte(what), RemoteAddr: addr, RKey: key}
	}
	out := mem[2*n.size : 3*n.size]
	for i := range out {
		out[i] = byte(i)
	}
	binary.BigEndian.PutUint32(out, mine.RKey())
	for _, wr := range []verbs.SendWR{
		write("hello"),
		{Op: verbs.OpSendWithInv, Flags: verbs.Signaled, SGL: n.sgl(2), InvalidateKey: key},
	} {
		if k, err := n.qp.PostSend([]verbs.SendWR{wr}); err != nil || k != 1 {
			return fmt.Errorf("%v: %d posted, %w", wr.Op, k, err)
		}
		if _, err := n.completion(ctx, 0); err != nil {
			return fmt.Errorf("%v: %w", wr.Op, err)
		}
	}
	wc, err := n.completion(ctx, 1)
	if err != nil || wc.Flags != verbs.WCWithInv || wc.Imm != mine.RKey() || int(wc.ByteLen) != n.size {
		return fmt.Errorf("the invalidation of key %#x: %+v, %w", mine.RKey(), wc, err)
	}
	for i, b := range mem[n.size : 2*n.size] {
		if b != byte(3*i) {
			return fmt.Errorf("byte %d is %#x", i, b)
		}
	}
	if _, err := n.qp.PostSend([]verbs.SendWR{write("after")}); err != nil {
		return err
	}
	if _, err := n.completion(ctx, 0); !errors.Is(err, verbs.RemAccessErr) {
		return fmt.Errorf("a write to an invalidated window: %w", err)
	}
	fmt.Println("both are invalidated")
	return nil
}
