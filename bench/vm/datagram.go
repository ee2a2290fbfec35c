package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// datagramArgs are those of rdmanet's programs that send datagrams, one way.
func datagramArgs(exe string) func(*shape, string, int, bool) []string {
	args := goArgs(exe, 0)
	return func(s *shape, addr string, port int, client bool) []string {
		return append(args(s, addr, port, client), "-datagrams")
	}
}

const (
	datagramBatch = 32
	// lost is how long none may come until those that are missing are lost.
	lost = time.Second
)

// datagrams sends or receives as many datagrams as a program of perftest does in this shape. What is measured is how long those that
// arrive take, from the first to the last; the receiver tells the sender.
func (p *peerOptions) datagrams(ctx context.Context) error {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	calls := runtime.NumCgoCall()
	n := 2 * p.count * p.iters
	r := &peerResult{}
	var err error
	if p.dial != "" {
		r.USPerTransfer, err = p.sendDatagrams(ctx, n)
	} else {
		r.USPerTransfer, err = p.receiveDatagrams(ctx, n)
	}
	if err != nil {
		return err
	}
	runtime.ReadMemStats(&after)
	r.CgoCalls = float64(runtime.NumCgoCall()-calls) / float64(n)
	r.Mallocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	return json.NewEncoder(os.Stdout).Encode(r)
}

func (p *peerOptions) sendDatagrams(ctx context.Context, n int) (us float64, err error) {
	d := rdmanet.Dialer{Device: p.device, BusyPoll: p.busy, Timeout: peerLimit}
	conn, err := d.DialContext(ctx, "rdma-ud", p.dial)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(peerLimit)); err != nil {
		return 0, err
	}
	c := conn.(*rdmanet.PacketConn)
	ms := make([]rdmanet.Message, datagramBatch)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, p.size)}
	}
	for sent := 0; sent < n; {
		k, err := c.WriteBatch(ms[:min(datagramBatch, n-sent)], 0)
		if err != nil {
			return 0, err
		}
		sent += k
	}
	var answer [16]byte
	if _, err := c.Read(answer[:]); err != nil {
		return 0, err
	}
	arrived, took := binary.BigEndian.Uint64(answer[:]), time.Duration(binary.BigEndian.Uint64(answer[8:]))
	if arrived < uint64(n) {
		fmt.Fprintf(os.Stderr, "%d of %d datagrams were lost\n", uint64(n)-arrived, n)
	}
	return float64(took.Nanoseconds()) / 1e3 / float64(arrived), nil
}

func (p *peerOptions) receiveDatagrams(ctx context.Context, n int) (us float64, err error) {
	lc := rdmanet.ListenConfig{Device: p.device, BusyPoll: p.busy, ReadBuffer: 8 << 20}
	pc, err := lc.ListenPacket(ctx, "rdma-ud", p.serve)
	if err != nil {
		return 0, err
	}
	defer pc.Close()
	c := pc.(*rdmanet.PacketConn)
	ms := make([]rdmanet.Message, datagramBatch)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, p.size)}
	}
	if err := c.SetReadDeadline(time.Now().Add(peerLimit)); err != nil {
		return 0, err
	}
	var first, last time.Time
	arrived := 0
	for arrived < n {
		k, err := c.ReadBatch(ms, 0)
		if errors.Is(err, os.ErrDeadlineExceeded) && arrived > 0 {
			break
		}
		if err != nil {
			return 0, err
		}
		if last = time.Now(); first.IsZero() {
			first = last
		}
		arrived += k
		if err := c.SetReadDeadline(last.Add(lost)); err != nil {
			return 0, err
		}
	}
	took := last.Sub(first)
	answer := binary.BigEndian.AppendUint64(nil, uint64(arrived))
	answer = binary.BigEndian.AppendUint64(answer, uint64(took))
	if _, err := c.WriteTo(answer, ms[0].Addr); err != nil {
		return 0, err
	}
	return float64(took.Nanoseconds()) / 1e3 / float64(arrived), nil
}
