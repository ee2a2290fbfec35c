package rdmanet_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"

	"github.com/go-rdma/rdma/rdmanet"
)

// A service of datagrams, and one who asks it.
func ExamplePacketConn() {
	service, err := rdmanet.ListenPacket("rdma-ud", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer service.Close()
	c, err := rdmanet.Dial("rdma-ud", service.LocalAddr().(*rdmanet.Addr).AddrPort().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()

	c.Write([]byte("question")) // datagrams may get lost; these two do not leave the host
	b := make([]byte, 1024)
	n, from, err := service.ReadFrom(b)
	if err != nil {
		log.Print(err)
		return
	}
	service.WriteTo([]byte("answer to "+string(b[:n])), from)
	n, err = c.Read(b)
	fmt.Printf("%s %v\n", b[:n], err)
	// Output: answer to question <nil>
}

// Many datagrams in one call, and 32 bits beside the payload.
func ExampleMessage() {
	pc, err := rdmanet.ListenPacket("rdma-ud", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer pc.Close()
	to := pc.LocalAddr() // itself

	var out []rdmanet.Message
	for i := range uint32(8) {
		out = append(out, rdmanet.Message{Buffers: [][]byte{[]byte("number "), {byte('0' + i)}}, Addr: to, Imm: i, HasImm: true})
	}
	if _, err := pc.(*rdmanet.PacketConn).WriteBatch(out, 0); err != nil {
		log.Print(err)
		return
	}
	in := make([]rdmanet.Message, len(out))
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, 100)}
	}
	for got := 0; got < len(out); {
		n, err := pc.(*rdmanet.PacketConn).ReadBatch(in, 0)
		if err != nil {
			log.Print(err)
			return
		}
		for _, m := range in[:n] {
			fmt.Printf("%d:%s ", m.Imm, strings.TrimPrefix(string(m.Buffers[0][:m.N]), "number "))
		}
		got += n
	}
	// Output: 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7
}

// What arrived too fast is counted.
func ExamplePacketStats() {
	pc, err := rdmanet.ListenPacket("rdma-ud", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer pc.Close()
	pc.WriteTo([]byte("a datagram"), pc.LocalAddr())
	pc.ReadFrom(make([]byte, 4)) // the rest of it is lost
	s := pc.(*rdmanet.PacketConn).Stats()
	fmt.Println(s.MessagesWritten, "written,", s.MessagesRead, "read,", s.Truncated, "truncated,", s.Dropped, "dropped")
	// Output: 1 written, 1 read, 1 truncated, 0 dropped
}

// A group of which one side is no member: it only sends.
func ExampleJoinFlags() {
	ctx := context.Background()
	group := &rdmanet.Addr{IP: netip.MustParseAddr("239.1.2.3")}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		log.Print(err)
		return
	}
	member, err := rdmanet.ListenMulticast("rdma-ud", lo, group)
	if err != nil {
		log.Print(err)
		return
	}
	defer member.Close()
	sender, err := (&rdmanet.ListenConfig{}).ListenMulticast(ctx, "rdma-ud", lo, group, rdmanet.JoinSendOnly)
	if err != nil {
		log.Print(err)
		return
	}
	defer sender.Close()
	sender.WriteTo([]byte("to all"), group)
	b := make([]byte, 100)
	n, _, err := member.ReadFrom(b)
	fmt.Printf("%s %v\n", b[:n], err)
	// Output: to all <nil>
}

// The sender of a datagram is a queue pair.
func ExampleUDAddr() {
	pc, err := rdmanet.ListenPacket("rdma-ud", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer pc.Close()
	pc.WriteTo([]byte("to itself"), pc.LocalAddr())
	_, from, err := pc.ReadFrom(make([]byte, 100))
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(from.(*rdmanet.Addr).UD.QPN == pc.LocalAddr().(*rdmanet.Addr).UD.QPN)
	// Output: true
}

func ExampleAddr() {
	a, err := rdmanet.ResolveAddr("rdma", "127.0.0.1:7471")
	if err != nil {
		log.Print(err)
		return
	}
	b := rdmanet.AddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:7471"))
	fmt.Println(a, a.Network(), *a == *b)
	// Output: 127.0.0.1:7471 rdma true
}

func ExampleDevice() {
	devices, err := rdmanet.Devices()
	if err != nil {
		log.Print(err)
		return
	}
	for _, d := range devices {
		if d.Unusable != nil {
			log.Printf("%s: %v", d.Name, d.Unusable) // and what to do about it
			continue
		}
		fmt.Println(d.Name, d.Provider, d.MaxQP, "queue pairs")
	}
}

// Which addresses can be listened on with a certain datagram length?
func ExamplePort() {
	devices, err := rdmanet.Devices()
	if err != nil {
		log.Print(err)
		return
	}
	for _, d := range devices {
		for _, p := range d.Ports {
			if p.State == "ACTIVE" && p.MTU >= 4096 {
				fmt.Println(d.Name, p.Num, p.Interface, p.GIDs)
			}
		}
	}
}
