package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

func init() {
	modes["udaddynet"] = udaddyNet
	modes["mckeynet"] = mckeyNet
}

// sendAll sends the messages that programs of C send: with the number of the sender's queue pair as immediate value.
func sendAll(c *rdmanet.PacketConn, o *options, qpn uint32, to net.Addr) error {
	ms := make([]rdmanet.Message, o.messages)
	for i := range ms {
		b := make([]byte, o.size)
		for j := range b {
			b[j] = byte(i + j)
		}
		ms[i] = rdmanet.Message{Buffers: [][]byte{b}, Addr: to, Imm: qpn, HasImm: true}
	}
	n, err := c.WriteBatch(ms, 0)
	if err == nil && n < len(ms) {
		err = fmt.Errorf("%d of %d sent", n, len(ms))
	}
	return err
}

// receiveAll reads n messages, and counts them by sender.
func receiveAll(ctx context.Context, c *rdmanet.PacketConn, o *options, n int) (map[*rdmanet.Addr]int, error) {
	if d, ok := ctx.Deadline(); ok {
		if err := c.SetReadDeadline(d); err != nil {
			return nil, err
		}
	}
	from := make(map[*rdmanet.Addr]int)
	ms := []rdmanet.Message{{Buffers: [][]byte{make([]byte, 5000)}}}
	for range n {
		if _, err := c.ReadBatch(ms, 0); err != nil {
			return from, err
		}
		m := &ms[0]
		a := m.Addr.(*rdmanet.Addr)
		if m.N != o.size || !m.HasImm || m.Imm != a.UD.QPN {
			return from, fmt.Errorf("%d bytes with immediate value %#x (%v) from %v", m.N, m.Imm, m.HasImm, a)
		}
		from[a]++
	}
	return from, nil
}

func qpnOf(c *rdmanet.PacketConn) uint32 { return c.LocalAddr().(*rdmanet.Addr).UD.QPN }

// udaddyNet is udaddy on rdmanet.
func udaddyNet(ctx context.Context, _ verbs.Provider, o *options) error {
	os.Setenv("RDMANET_DEVICE", "softroce")
	if o.bind.IsValid() {
		pc, err := rdmanet.ListenPacket("rdma-ud", netip.AddrPortFrom(o.bind, uint16(o.port)).String())
		if err != nil {
			return err
		}
		c := pc.(*rdmanet.PacketConn)
		fmt.Println("listening on", c.LocalAddr())
		from, err := receiveAll(ctx, c, o, o.connections*o.messages)
		if err != nil {
			return err
		}
		if len(from) != o.connections {
			return fmt.Errorf("%d senders", len(from))
		}
		for a := range from {
			if err := sendAll(c, o, qpnOf(c), a); err != nil {
				return err
			}
		}
		fmt.Println("all messages both ways")
		time.Sleep(100 * time.Millisecond)
		return c.Close()
	}
	var all []*rdmanet.PacketConn
	for range o.connections { // udaddy waits for all before it answers any
		c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma-ud", o.remote().String())
		if err != nil {
			return err
		}
		all = append(all, c.(*rdmanet.PacketConn))
		fmt.Println("found", c.RemoteAddr())
	}
	for _, c := range all {
		if err := sendAll(c, o, qpnOf(c), nil); err != nil {
			return err
		}
	}
	for _, c := range all {
		if _, err := receiveAll(ctx, c, o, o.messages); err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	fmt.Println("all messages both ways")
	return nil
}

// mckeyNet is mckey on rdmanet.
func mckeyNet(ctx context.Context, _ verbs.Provider, o *options) error {
	os.Setenv("RDMANET_DEVICE", "softroce")
	pc, err := rdmanet.ListenPacket("rdma-ud", netip.AddrPortFrom(o.bind, 0).String())
	if err != nil {
		return err
	}
	c := pc.(*rdmanet.PacketConn)
	var flags rdmanet.JoinFlags
	if o.sendOnly {
		flags = rdmanet.JoinSendOnly
	}
	group, err := c.JoinGroup(ctx, nil, &rdmanet.Addr{IP: o.group}, flags)
	if err != nil {
		return err
	}
	fmt.Println("joined", group)
	if o.send {
		err = sendAll(c, o, qpnOf(c), group)
	} else {
		_, err = receiveAll(ctx, c, o, o.messages)
	}
	if err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond)
	if err := c.LeaveGroup(nil, group); err != nil {
		return err
	}
	fmt.Println("all messages")
	return c.Close()
}
