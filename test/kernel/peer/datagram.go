package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

func init() {
	modes["udaddy"] = udaddy
	modes["mckey"] = mckey
	modes["nolookup"] = nolookup
}

// station is a queue pair for datagrams with a buffer for each message of either way.
type station struct {
	id    verbs.UDCMID
	qp    verbs.QP
	cq    [2]verbs.CQ // of sends, of receives
	pd    verbs.PD
	arena verbs.Arena
	mr    verbs.MR
	o     *options
	more  []io.Closer
}

func (s *station) slot(i int) int { return i * (verbs.GRHLen + s.o.size) }

func newStation(id verbs.CMID, o *options) (*station, error) {
	s := &station{id: id.(verbs.UDCMID), o: o}
	depth := max(o.messages, 1)
	var err error
	if s.pd, err = id.Device().AllocPD(); err != nil {
		return nil, err
	}
	for i := range s.cq {
		if s.cq[i], err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 2 * depth}); err != nil {
			return nil, err
		}
	}
	if s.qp, err = id.CreateQP(s.pd, &verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: s.cq[0], RecvCQ: s.cq[1], MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1,
	}); err != nil {
		return nil, err
	}
	size := (s.slot(2*depth) + pageSize - 1) / pageSize * pageSize
	if s.arena, err = s.pd.NewArena(size); err != nil {
		return nil, err
	}
	if s.mr, err = s.pd.RegMR(s.arena.Bytes(), verbs.LocalWrite); err != nil {
		return nil, err
	}
	for i := range o.messages {
		sge := verbs.SGE{Addr: s.mr.Addr() + uint64(s.slot(i)), Length: uint32(verbs.GRHLen + o.size), LKey: s.mr.LKey()}
		if n, err := s.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{sge}}}); err != nil || n != 1 {
			return nil, fmt.Errorf("receive %d: %d posted, %w", i, n, err)
		}
	}
	return s, nil
}

// send sends all messages, as the programs of C do: with the sender's queue pair number as immediate value.
func (s *station) send(ctx context.Context, p *verbs.UDParam) error {
	ah, err := s.pd.CreateAH(&p.AH)
	if err != nil {
		return err
	}
	s.more = append(s.more, ah)
	var wrs []verbs.SendWR
	for i := range s.o.messages {
		off := s.slot(s.o.messages + i)
		for j := range s.o.size {
			s.arena.Bytes()[off+j] = byte(i + j)
		}
		wrs = append(wrs, verbs.SendWR{
			ID: uint64(i), Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: s.qp.Num(),
			SGL: []verbs.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(s.o.size), LKey: s.mr.LKey()}},
			AH:  ah, RemoteQPN: p.QPN, RemoteQKey: p.QKey,
		})
	}
	if n, err := s.qp.PostSend(wrs); err != nil || n != len(wrs) {
		return fmt.Errorf("%d of %d sent, %w", n, len(wrs), err)
	}
	for range wrs {
		if _, err := s.completion(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// receive takes all messages and returns who sent the last.
func (s *station) receive(ctx context.Context, dst netip.Addr) (*verbs.UDParam, error) {
	var p *verbs.UDParam
	for i := range s.o.messages {
		wc, err := s.completion(ctx, 1)
		if err != nil {
			return nil, fmt.Errorf("%d of %d: %w", i, s.o.messages, err)
		}
		g, err := verbs.ParseGRH(s.arena.Bytes()[s.slot(int(wc.ID)):], wc.Flags)
		if err != nil {
			return nil, err
		}
		switch {
		case int(wc.ByteLen) != verbs.GRHLen+s.o.size:
			return nil, fmt.Errorf("message %d: %d bytes instead of %d and a GRH", i, wc.ByteLen, s.o.size)
		case wc.Flags&verbs.WCWithImm == 0 || wc.Imm != wc.SrcQPN:
			return nil, fmt.Errorf("message %d: immediate value %#x of queue pair %#x", i, wc.Imm, wc.SrcQPN)
		case g.Dest != dst:
			return nil, fmt.Errorf("message %d: to %v instead of %v", i, g.Dest, dst)
		}
		p = &verbs.UDParam{
			AH: verbs.AHAttr{Local: s.id.LocalAddr().Addr(), Remote: g.Source}, QPN: wc.SrcQPN, QKey: verbs.UDPQKey,
		}
	}
	return p, nil
}

func (s *station) completion(ctx context.Context, which int) (verbs.WC, error) {
	n := node{cq: s.cq}
	return n.completion(ctx, which)
}

func (s *station) close() error {
	var errs []error
	for _, c := range append(slices.Clone(s.more), s.qp, s.cq[0], s.cq[1], s.mr, s.arena, s.pd, s.id) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// udaddy is udaddy: a server found by SIDR, messages to it and as many back.
func udaddy(ctx context.Context, p verbs.Provider, o *options) error {
	if o.bind.IsValid() {
		return udaddyServer(ctx, p, o)
	}
	var all []*station
	var to []*verbs.UDParam
	for range o.connections { // udaddy waits for all before it answers any
		id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: netip.AddrPortFrom(o.server, uint16(o.port))})
		if err != nil {
			return err
		}
		s, err := newStation(id, o)
		if err != nil {
			return err
		}
		u, err := s.id.Lookup(ctx, o.private)
		if err != nil {
			return err
		}
		fmt.Printf("found queue pair %#x with Q_Key %#x\n", u.QPN, u.QKey)
		all, to = append(all, s), append(to, u)
	}
	for i, s := range all {
		if err := s.send(ctx, to[i]); err != nil {
			return err
		}
	}
	for _, s := range all {
		if _, err := s.receive(ctx, s.id.LocalAddr().Addr().WithZone("")); err != nil {
			return err
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	fmt.Println("all messages both ways")
	return nil
}

func udaddyServer(ctx context.Context, p verbs.Provider, o *options) error {
	l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(o.bind, uint16(o.port))})
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	var all []*station
	for range o.connections {
		id, err := l.GetRequest(ctx)
		if err != nil {
			return err
		}
		s, err := newStation(id, o)
		if err != nil {
			return err
		}
		if err := s.id.Reply(s.qp.Num(), 0, nil); err != nil {
			return err
		}
		all = append(all, s)
	}
	for _, s := range all {
		u, err := s.receive(ctx, o.bind.WithZone(""))
		if err != nil {
			return err
		}
		if err := s.send(ctx, u); err != nil {
			return err
		}
	}
	for _, s := range all {
		if err := s.close(); err != nil {
			return err
		}
	}
	fmt.Println("all messages both ways")
	return l.Close()
}

// nolookup looks a service up that is not there, or refuses all who look this one up.
func nolookup(ctx context.Context, p verbs.Provider, o *options) error {
	if o.bind.IsValid() {
		l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(o.bind, uint16(o.port))})
		if err != nil {
			return err
		}
		fmt.Println("listening on", l.Addr())
		id, err := l.GetRequest(ctx)
		if err != nil {
			return err
		}
		return errors.Join(id.Reject([]byte("not today")), id.Close(), l.Close())
	}
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: netip.AddrPortFrom(o.server, uint16(o.port))})
	if err != nil {
		return err
	}
	defer id.Close()
	_, err = id.(verbs.UDCMID).Lookup(ctx, nil)
	rej := new(verbs.LookupError)
	if !errors.As(err, &rej) {
		return fmt.Errorf("no refusal but %w", err)
	}
	fmt.Println("refused, status", rej.Status)
	return nil
}

// mckey is mckey: a member of a group that receives, or with -send one that sends.
func mckey(ctx context.Context, p verbs.Provider, o *options) error {
	var all []*station
	var to []*verbs.UDParam
	for range o.connections {
		id, err := p.Resolve(ctx, &verbs.CMIDAttr{
			PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(o.bind, 0), Remote: netip.AddrPortFrom(o.group, 0),
		})
		if err != nil {
			return err
		}
		s, err := newStation(id, o)
		if err != nil {
			return err
		}
		u, err := s.id.Join(ctx, &verbs.JoinAttr{Group: o.group, SendOnly: o.sendOnly})
		if err != nil {
			return err
		}
		all, to = append(all, s), append(to, u)
	}
	fmt.Println("joined", o.group)
	for i, s := range all {
		if o.send {
			if err := s.send(ctx, to[i]); err != nil {
				return err
			}
			continue
		}
		if _, err := s.receive(ctx, o.group); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond)
	for i, s := range all {
		if err := errors.Join(s.id.Leave(to[i]), s.close()); err != nil {
			return err
		}
	}
	fmt.Println("all messages")
	return nil
}
