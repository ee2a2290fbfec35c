// pingpong sends messages to and fro and says how long that takes.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rpma"
)

var rounds = flag.Int("n", 1000, "rounds")

func main() {
	roles.Usage()
	roles.Main(newExample(*rounds))
}

func newExample(rounds int) roles.Example {
	return roles.Example{
		Serve: serve,
		Dial:  func(ctx context.Context, out io.Writer, addr string) error { return dial(ctx, out, addr, rounds) },
	}
}

const length = 8 // of a message, a number

// last is the number that ends it.
const last = ^uint64(0)

func serve(ctx context.Context, out io.Writer, addr string, ready func(string)) (err error) {
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	mr, err := peer.Alloc(2*length, rpma.SendBuf|rpma.RecvBuf)
	if err != nil {
		return err
	}
	defer mr.Close()
	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	defer ep.Close()
	ready(ep.Addr().String())
	req, err := ep.Accept(ctx, nil)
	if err != nil {
		return err
	}
	in, back := mr.Slice(0, length), mr.Slice(length, length)
	if err := req.PostRecv(in, 0); err != nil { // before the peer can send anything
		_ = req.Close()
		return err
	}
	conn, err := req.Connect(ctx, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	n := 0
	for c, err := range conn.CQ().Completions(ctx) { // receives only: Do keeps its own
		if err == nil {
			err = c.Err()
		}
		if err != nil {
			return err
		}
		v := binary.LittleEndian.Uint64(mr.Bytes())
		if v == last {
			break
		}
		binary.LittleEndian.PutUint64(mr.Bytes()[length:], v+1)
		if err := conn.PostRecv(in, 0); err != nil {
			return err
		}
		if err := conn.Do(ctx, rpma.Send(back)); err != nil {
			return err
		}
		n++
	}
	fmt.Fprintln(out, "answered", n, "messages")
	return roles.Ended(ctx, conn)
}

func dial(ctx context.Context, out io.Writer, addr string, rounds int) (err error) {
	peer, err := roles.RemotePeer(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	mr, err := peer.Alloc(2*length, rpma.SendBuf|rpma.RecvBuf)
	if err != nil {
		return err
	}
	defer mr.Close()
	conn, err := peer.Dial(ctx, addr, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	forth, in := mr.Slice(0, length), mr.Slice(length, length)
	var wc [1]rpma.Completion
	took := make([]time.Duration, 0, rounds)
	for i := range rounds {
		binary.LittleEndian.PutUint64(mr.Bytes(), uint64(i))
		if err := conn.PostRecv(in, 0); err != nil {
			return err
		}
		begin := time.Now()
		op := rpma.Send(forth)
		op.Flags = rpma.CompletionOnError // the answer says that it has arrived
		if _, err := conn.Post(op); err != nil {
			return err
		}
		for {
			n, err := conn.CQ().Poll(wc[:])
			if err == nil && n == 0 {
				err = conn.CQ().Wait(ctx)
			}
			if err != nil {
				return err
			}
			if n == 1 {
				break
			}
		}
		took = append(took, time.Since(begin))
		if err := wc[0].Err(); err != nil {
			return err
		}
		if v := binary.LittleEndian.Uint64(mr.Bytes()[length:]); v != uint64(i)+1 {
			return fmt.Errorf("the answer to %d is %d", i, v)
		}
	}
	binary.LittleEndian.PutUint64(mr.Bytes(), last)
	if err := conn.Do(ctx, rpma.Send(forth)); err != nil {
		return err
	}
	if rounds > 0 {
		slices.Sort(took)
		fmt.Fprintf(out, "%d rounds: median %v, 99th percentile %v\n", rounds, took[rounds/2], took[rounds*99/100])
	}
	return nil
}
