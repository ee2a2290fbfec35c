package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-rdma/rdma/rpma"
)

// end is the measuring end of a connection.
type end struct {
	peer   *rpma.Peer
	conn   *rpma.Conn
	mr     *rpma.MR
	remote rpma.RemoteMR

	oneBuffer bool // all operations are on the same memory, as perftest's are
}

const receives = 4 * maxDepth

// serve is the other process: memory for a client, and receives. It ends when its client has gone.
func serve(ctx context.Context, addr string) error {
	d, err := rpma.LookupLocal(addr)
	if err != nil {
		return err
	}
	peer, err := rpma.NewPeer(d)
	if err != nil {
		return err
	}
	mr, err := peer.Alloc(maxDepth*maxSize, rpma.WriteDst|rpma.ReadSrc|rpma.FlushVisibility)
	if err != nil {
		return err
	}
	in, err := peer.Alloc(receives*maxSize, rpma.RecvBuf)
	if err != nil {
		return err
	}
	descriptor, err := mr.MarshalBinary()
	if err != nil {
		return err
	}
	ep, err := peer.Listen(addr)
	if err != nil {
		return err
	}
	fmt.Println(ep.Addr())
	req, err := ep.Accept(ctx, &rpma.ConnConfig{RQSize: receives})
	if err != nil {
		return err
	}
	slot := func(i uint64) rpma.Recv { return rpma.Recv{Dst: in.Slice(int(i)*maxSize, maxSize), ID: i} }
	recvs := make([]rpma.Recv, receives)
	for i := range recvs {
		recvs[i] = slot(uint64(i))
	}
	if _, err := req.PostRecvs(recvs...); err != nil {
		return err
	}
	conn, err := req.Connect(ctx, descriptor)
	if err != nil {
		return err
	}
	wc := make([]rpma.Completion, receives)
	for q := conn.CQ(); q.Wait(ctx) == nil; {
		n, err := q.Poll(wc)
		recvs = recvs[:0]
		for i := range wc[:n] {
			if wc[i].Err() == nil {
				recvs = append(recvs, slot(wc[i].ID))
			}
		}
		if err != nil || len(recvs) < n {
			break // the client has gone
		}
		if _, err := conn.PostRecvs(recvs...); err != nil {
			break
		}
	}
	select {
	case <-conn.Done():
	case <-ctx.Done():
	}
	err = conn.Err()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, conn.Close(), ep.Close(), in.Close(), mr.Close(), peer.Close())
}

func dial(ctx context.Context, addr string) (*end, error) {
	d, err := rpma.LookupRemote(ctx, addr)
	if err != nil {
		return nil, err
	}
	e := new(end)
	if e.peer, err = rpma.NewPeer(d); err != nil {
		return nil, err
	}
	if e.mr, err = e.peer.Alloc(maxDepth*maxSize, rpma.WriteSrc|rpma.ReadDst|rpma.SendBuf); err != nil {
		return nil, err
	}
	if e.conn, err = e.peer.Dial(ctx, addr, &rpma.ConnConfig{SQSize: 2 * maxDepth}); err != nil {
		return nil, err
	}
	e.remote, err = rpma.ParseRemoteMR(e.conn.PrivateData())
	return e, err
}

func (e *end) close() error { return errors.Join(e.conn.Close(), e.mr.Close(), e.peer.Close()) }

// dialOnce measures one case, and prints what it found.
func dialOnce(ctx context.Context, o *options) error {
	c, err := caseNamed(o.one)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	e, err := dial(ctx, o.dial)
	if err != nil {
		return err
	}
	e.oneBuffer = true
	f, err := c.measure(ctx, e, o.sample)
	if err = errors.Join(err, e.close()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}
