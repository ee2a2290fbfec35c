package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-rdma/rdma/internal/verbs"
)

// The messages of rping are all of this size: address, remote key and length of a buffer, big endian. Those of
// the server have nothing in them.
const infoSize = 16

// pinger is one end of rping's only connection.
type pinger struct {
	*node
	source, sink verbs.MR // the server has a sink only
	sent, got    int      // messages
}

// rping is rping: for every round the client names a buffer, which the server READs, and then another, into which it
// WRITEs the same. The client disconnects.
func rping(ctx context.Context, p verbs.Provider, o *options) error {
	nodeOptions := *o
	nodeOptions.connections, nodeOptions.size, nodeOptions.messages = 1, infoSize, 2*o.messages
	nodes, err := connect(ctx, p, &nodeOptions)
	if err != nil {
		return err
	}
	r := &pinger{node: nodes[0]}
	round, access := r.serve, verbs.LocalWrite
	if o.server.IsValid() {
		round, access = r.ping, verbs.LocalWrite|verbs.RemoteWrite
		if r.source, err = r.register(o.size, verbs.RemoteRead); err != nil {
			return errors.Join(err, r.close())
		}
	}
	if r.sink, err = r.register(o.size, access); err != nil {
		return errors.Join(err, r.close())
	}
	for i := range o.messages {
		if err := round(ctx, i); err != nil {
			return errors.Join(fmt.Errorf("round %d: %w", i, err), r.close())
		}
	}
	if o.server.IsValid() {
		err = r.id.Disconnect()
	}
	err = errors.Join(err, r.wait(ctx, verbs.EventDisconnected), r.close())
	if err == nil {
		fmt.Println("all pings have come back")
	}
	return err
}

// register makes a region with an arena of its own.
func (r *pinger) register(size int, access verbs.Access) (verbs.MR, error) {
	arena, err := r.pd.NewArena((size + pageSize - 1) / pageSize * pageSize)
	if err != nil {
		return nil, err
	}
	r.more = append(r.more, arena)
	mr, err := r.pd.RegMR(arena.Bytes()[:size], access)
	if err != nil {
		return nil, err
	}
	r.more = append(r.more, mr)
	return mr, nil
}

// ping is the client's round i.
func (r *pinger) ping(ctx context.Context, i int) error {
	copy(r.source.Bytes(), pingData(i, len(r.source.Bytes())))
	clear(r.sink.Bytes())
	for _, mr := range []verbs.MR{r.source, r.sink} {
		if err := r.sendInfo(ctx, mr); err != nil {
			return err
		}
		if _, err := r.receiveInfo(ctx); err != nil {
			return err
		}
	}
	return r.check(i)
}

// serve is the server's.
func (r *pinger) serve(ctx context.Context, i int) error {
	clear(r.sink.Bytes())
	for _, op := range []verbs.Opcode{verbs.OpRead, verbs.OpWrite} {
		wr, err := r.receiveInfo(ctx)
		if err != nil {
			return err
		}
		wr.Op = op
		if err := r.do(ctx, wr); err != nil {
			return err
		}
		if err := r.check(i); err != nil {
			return err
		}
		if err := r.sendInfo(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// check compares what has come with what a client sends in round i.
func (r *pinger) check(i int) error {
	got, want := r.sink.Bytes(), pingData(i, len(r.sink.Bytes()))
	if bytes.Equal(got, want) {
		return nil
	}
	j := 0
	for got[j] == want[j] {
		j++
	}
	return fmt.Errorf("byte %d of %d is %#x instead of %#x", j, len(want), got[j], want[j])
}

// pingData is a text, letters that begin with another one each round, and a zero.
func pingData(i, size int) []byte {
	const first, count = 'A', 'z' - 'A' + 1
	b := fmt.Appendf(make([]byte, 0, size), "rdma-ping-%d: ", i)
	for j := 0; len(b) < size-1; j++ {
		b = append(b, byte(first+(i+j)%count))
	}
	return append(b, 0)
}

// sendInfo names a region to the peer, or none.
func (r *pinger) sendInfo(ctx context.Context, mr verbs.MR) error {
	at := (r.recvs + r.sent) * infoSize
	b := r.arena.Bytes()[at : at+infoSize]
	if mr != nil {
		binary.BigEndian.PutUint64(b, mr.Addr())
		binary.BigEndian.PutUint32(b[8:], mr.RKey())
		binary.BigEndian.PutUint32(b[12:], uint32(len(mr.Bytes())))
	}
	wr := verbs.SendWR{Op: verbs.OpSend, SGL: r.sgl(r.recvs + r.sent)}
	r.sent++
	return r.do(ctx, wr)
}

// receiveInfo waits for a message. The request that it returns is about the whole of our sink and the region that the
// message names, and is only of use to the server.
func (r *pinger) receiveInfo(ctx context.Context) (wr verbs.SendWR, err error) {
	wc, err := r.completion(ctx, 1)
	if err != nil {
		return wr, fmt.Errorf("receive: %w", err)
	}
	if wc.ID != uint64(r.got) || wc.ByteLen != infoSize {
		return wr, fmt.Errorf("receive %d of %d bytes instead of %d of %d", wc.ID, wc.ByteLen, r.got, infoSize)
	}
	b := r.arena.Bytes()[r.got*infoSize:]
	r.got++
	if r.source != nil {
		return wr, nil
	}
	size := uint32(len(r.sink.Bytes()))
	if n := binary.BigEndian.Uint32(b[12:]); n != size {
		return wr, fmt.Errorf("the peer's buffer has %d bytes instead of %d", n, size)
	}
	wr.RemoteAddr, wr.RKey = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	wr.SGL = []verbs.SGE{{Addr: r.sink.Addr(), Length: size, LKey: r.sink.LKey()}}
	return wr, nil
}

// do posts a request and waits until it is done.
func (r *pinger) do(ctx context.Context, wr verbs.SendWR) error {
	wr.Flags = verbs.Signaled
	if n, err := r.qp.PostSend([]verbs.SendWR{wr}); err != nil || n != 1 {
		return fmt.Errorf("%v: %d posted, %w", wr.Op, n, err)
	}
	if _, err := r.completion(ctx, 0); err != nil {
		return fmt.Errorf("%v: %w", wr.Op, err)
	}
	return nil
}
