package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

var (
	group1 = netip.MustParseAddr("239.255.73.1")
	group2 = netip.MustParseAddr("239.255.73.2")
)

// interfaceOf is the one that has an address.
func interfaceOf(t testing.TB, address string) *net.Interface {
	t.Helper()
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range ifs {
		as, err := ifi.Addrs()
		require.NoError(t, err)
		for _, a := range as {
			if ip, _, _ := strings.Cut(a.String(), "/"); ip == address {
				return &ifi
			}
		}
	}
	require.FailNow(t, "no interface", address)
	return nil
}

func member(t testing.TB, ifi *net.Interface, group netip.Addr) *rdmanet.PacketConn {
	t.Helper()
	c, err := rdmanet.ListenMulticast("rdma-ud", ifi, &rdmanet.Addr{IP: group, Port: 7})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestListenMulticast(t *testing.T) { testMulticast(t, interfaceOf(t, local4), group1) }

// testMulticast has three members and one that is none, on an interface.
func testMulticast(t *testing.T, ifi *net.Interface, group netip.Addr) {
	a, b, c := member(t, ifi, group), member(t, ifi, group), member(t, ifi, group)
	local := a.LocalAddr().(*rdmanet.Addr)
	require.Equal(t, group, local.IP.WithZone(""))
	require.EqualValues(t, 7, local.Port)
	require.EqualValues(t, 0xffffff, local.UD.QPN)
	require.EqualValues(t, 0x01234567, local.UD.QKey)
	for i, to := range []net.Addr{local, &net.UDPAddr{IP: group.AsSlice(), Port: 5000, Zone: ifi.Name}, &rdmanet.Addr{IP: group.WithZone(local.IP.Zone())}} {
		what := fmt.Sprint("to all ", i)
		says(t, a, to, what)
		gets(t, b, what)
		from := gets(t, c, what)
		says(t, c, from, "to one")
		gets(t, a, "to one")
		for _, m := range []*rdmanet.PacketConn{a, b, c} {
			getsNothing(t, m)
		}
	}
	require.NoError(t, a.SetMulticastLoopback(true))
	says(t, a, local, "to me too")
	for _, m := range []*rdmanet.PacketConn{a, b, c} {
		gets(t, m, "to me too")
	}
	require.NoError(t, b.LeaveGroup(ifi, local))
	require.ErrorIs(t, b.LeaveGroup(nil, local), syscall.EADDRNOTAVAIL)
	says(t, c, local, "few")
	gets(t, a, "few")
	getsNothing(t, b)
	got, err := b.JoinGroup(t.Context(), ifi, local, 0)
	require.NoError(t, err)
	require.Equal(t, local.UD, got.UD)
	_, err = b.JoinGroup(t.Context(), ifi, local, 0)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	says(t, c, local, "all again")
	gets(t, b, "all again")
	gets(t, a, "all again")
	for _, m := range []*rdmanet.PacketConn{a, b, c} {
		require.NoError(t, m.Close())
	}
}

// The same with what a ListenConfig and flags say.
func TestListenConfigMulticast(t *testing.T) {
	ifi := interfaceOf(t, local4)
	lc := rdmanet.ListenConfig{Device: "softroce", ReadBuffer: 1 << 16}
	open := func(f rdmanet.JoinFlags) *rdmanet.PacketConn {
		c, err := lc.ListenMulticast(t.Context(), "rdma-ud4", ifi, &rdmanet.Addr{IP: group2, Port: 9}, f)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	a, b, out, ip := open(0), open(rdmanet.JoinUnmapped), open(rdmanet.JoinSendOnly), open(rdmanet.JoinIPoIB)
	group := a.LocalAddr()
	require.Equal(t, group, b.LocalAddr())
	require.Equal(t, group, out.LocalAddr())
	require.EqualValues(t, 0x0b1b, ip.LocalAddr().(*rdmanet.Addr).UD.QKey)
	says(t, out, group, "to members")
	gets(t, a, "to members")
	gets(t, b, "to members")
	says(t, a, group, "from a member")
	gets(t, b, "from a member")
	getsNothing(t, a)
	getsNothing(t, out)
	getsNothing(t, ip)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := lc.ListenMulticast(ctx, "rdma-ud", ifi, &rdmanet.Addr{IP: group2}, 0)
	require.ErrorIs(t, err, context.Canceled)
	_, err = lc.ListenMulticast(t.Context(), "rdma-ud", ifi, &rdmanet.Addr{IP: group2}, 64)
	require.ErrorIs(t, err, syscall.EINVAL)
	lc.Device = "nonsense"
	_, err = lc.ListenMulticast(t.Context(), "rdma-ud", ifi, &rdmanet.Addr{IP: group2}, 0)
	require.ErrorIs(t, err, rdmanet.ErrNoDevice)
}

// A service joins groups beside.
func TestJoinGroup(t *testing.T) {
	for _, listen := range []string{local4 + ":0", ":0"} {
		s, o := listenPacket(t, "rdma-ud", listen), localPacket(t)
		ifi := interfaceOf(t, local4)
		fresh, err := s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{IP: netip.IPv4Unspecified()}, 0)
		require.NoError(t, err)
		require.True(t, fresh.IP.IsMulticast())
		again, err := s.JoinGroup(t.Context(), ifi, &net.UDPAddr{IP: net.IPv4zero}, 0)
		require.NoError(t, err)
		require.NotEqual(t, fresh.IP, again.IP)
		says(t, o, fresh, "fresh")
		from := gets(t, s, "fresh")
		says(t, s, from, "answer")
		gets(t, o, "answer")
		require.NoError(t, s.LeaveGroup(ifi, fresh))
		says(t, o, fresh, "nobody")
		says(t, o, again, "again")
		gets(t, s, "again")

		unmapped, err := s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{IP: netip.MustParseAddr("::ffff:239.255.73.2")}, rdmanet.JoinUnmapped)
		require.NoError(t, err)
		require.Equal(t, group2, unmapped.IP)
		says(t, o, unmapped, "by GID")
		gets(t, s, "by GID")
		require.NoError(t, s.LeaveGroup(nil, unmapped))
		_, err = s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{UD: unmapped.UD}, rdmanet.JoinUnmapped)
		require.NoError(t, err)
		require.NoError(t, s.LeaveGroup(nil, &rdmanet.Addr{UD: unmapped.UD}))

		_, err = o.JoinGroup(t.Context(), nil, &net.IPAddr{IP: group1.AsSlice()}, rdmanet.JoinSendOnly)
		require.NoError(t, err)
		_, err = s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{IP: group1}, 0)
		require.NoError(t, err)
		says(t, o, &rdmanet.Addr{IP: group1}, "sends only")
		gets(t, s, "sends only")
		says(t, s, &rdmanet.Addr{IP: group1}, "not for who sends only")
		gets(t, s, "not for who sends only")
		getsNothing(t, o)

		ip, err := s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{IP: group2}, rdmanet.JoinIPoIB)
		require.NoError(t, err)
		require.EqualValues(t, 0x0b1b, ip.UD.QKey)
		says(t, o, &rdmanet.Addr{IP: group2}, "another port space")
		getsNothing(t, s)
		require.NoError(t, s.Close())
	}
}

func TestJoinGroupErrors(t *testing.T) {
	s := localPacket(t)
	ifi := interfaceOf(t, local4)
	var e *rdmanet.Error
	for _, a := range []net.Addr{
		&rdmanet.Addr{IP: netip.MustParseAddr("192.168.1.1")}, &net.UDPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4},
	} {
		_, err := s.JoinGroup(t.Context(), ifi, a, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Hint, "224.0.0.0 to 239.255.255.255")
		_, err = s.JoinGroup(t.Context(), nil, a, rdmanet.JoinUnmapped)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err := rdmanet.ListenMulticast("rdma-ud", ifi, &rdmanet.Addr{IP: netip.MustParseAddr("192.168.1.1")})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Contains(t, err.Error(), "224.0.0.0 to 239.255.255.255")
	_, err = rdmanet.ListenMulticast("rdma-ud", ifi, nil)
	require.Error(t, err)
	_, err = rdmanet.ListenMulticast("rdma-ud6", ifi, &rdmanet.Addr{IP: group1})
	require.ErrorAs(t, err, new(*net.AddrError))
	for _, a := range []net.Addr{nil, (*rdmanet.Addr)(nil), new(rdmanet.Addr), &net.UnixAddr{}, new(net.UDPAddr)} {
		_, err = s.JoinGroup(t.Context(), nil, a, 0)
		require.Error(t, err, "%v", a)
		require.Error(t, s.LeaveGroup(nil, a))
	}
	_, err = s.JoinGroup(t.Context(), nil, &rdmanet.Addr{IP: group1}, 64)
	require.ErrorIs(t, err, syscall.EINVAL)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.JoinGroup(ctx, nil, &rdmanet.Addr{IP: group1}, 0)
	require.ErrorIs(t, err, context.Canceled)
	// lo has no route for IPv6 groups.
	_, err = rdmanet.ListenMulticast("rdma-ud", interfaceOf(t, "127.0.0.1"), &rdmanet.Addr{IP: netip.MustParseAddr("ff15::7373:1")})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Contains(t, err.Error(), "ip -6 route add multicast")
}

// memberBurst is how many datagrams a member gets before it is waited for: more might be too many for one that does not run just then.
const memberBurst = 20

// memberRole joins a group, reads numbers in order, and tells who sent them that it has them: each burst, and all.
func memberRole() error {
	c, err := rdmanet.ListenMulticast("rdma-ud", nil, &rdmanet.Addr{IP: group1})
	if err != nil {
		return err
	}
	fmt.Println("joined")
	b := make([]byte, 100)
	n, from, err := c.ReadFrom(b)
	for i := 0; err == nil && string(b[:n]) != "end"; i++ {
		if string(b[:n]) != fmt.Sprint(i) {
			return fmt.Errorf("%q instead of %d", b[:n], i)
		}
		if i%memberBurst == memberBurst-1 {
			if _, err = c.WriteTo(fmt.Append(nil, "got ", i), from); err != nil {
				break
			}
		}
		n, from, err = c.ReadFrom(b)
	}
	if err == nil {
		_, err = c.WriteTo([]byte("got all"), from)
		untilStdinEnds() // what the kernel gives to a process that ends, of what is for others, is lost with it
	}
	return errors.Join(err, c.Close())
}

// vethNetwork gives the process an interface that can do multicast, for IPv6 too.
func vethNetwork(t *testing.T) *net.Interface {
	t.Helper()
	for _, args := range []string{
		"link add va type veth peer name vb", "link set vb up", "link set va up",
		"addr add 10.9.0.1/24 dev va", "addr add fd09::1/64 dev va nodad", "addr add fe80::a/64 dev va nodad",
		"route add 224.0.0.0/4 dev va",
	} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s (package iproute2): %s", args, out)
	}
	var va *net.Interface
	require.Eventually(t, func() bool {
		var err error
		va, err = net.InterfaceByName("va")
		return err == nil && va.Flags&net.FlagRunning != 0
	}, soon, time.Millisecond)
	return va
}

// Several processes in one group get each datagram once. One that is killed leaves nothing behind.
func TestGroupProcesses(t *testing.T) {
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	vethNetwork(t)
	ps := make([]*process, 3)
	for i := range ps {
		ps[i] = start(t, "member")
	}
	killed := start(t, "member")
	require.NoError(t, killed.cmd.Process.Kill())
	<-killed.ended
	c := listenPacket(t, "rdma-ud", "10.9.0.1:0")
	to := &rdmanet.Addr{IP: group1}
	for i := range 100 {
		says(t, c, to, fmt.Sprint(i))
		if i%memberBurst == memberBurst-1 {
			for range ps {
				gets(t, c, fmt.Sprint("got ", i))
			}
		}
	}
	says(t, c, to, "end")
	for range ps {
		gets(t, c, "got all")
	}
	for _, p := range ps {
		p.stop(t)
	}
	require.Empty(t, memberships(t), "all has been left")
}

// memberships are the groups of this file that the network namespace knows, by IGMP and MLD.
func memberships(t testing.TB) (l []string) {
	t.Helper()
	for _, f := range []string{"/proc/self/net/igmp", "/proc/self/net/igmp6"} {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for line := range strings.SplitSeq(string(b), "\n") {
			if strings.Contains(line, "49FFEF") || strings.Contains(line, "EFFF49") || strings.Contains(line, "ff15000000000000") {
				l = append(l, strings.TrimSpace(line))
			}
		}
	}
	return l
}

// Groups of both families on an interface that can do multicast, and services beside.
func TestMulticastInterface(t *testing.T) {
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	va := vethNetwork(t)
	for _, g := range []string{"239.255.73.3", "ff15::7373:3", "ff02::7373:4"} {
		t.Run(g, func(t *testing.T) { testMulticast(t, va, netip.MustParseAddr(g)) })
	}
	s := listenPacket(t, "rdma-ud", ":0")
	require.Equal(t, 1024, dialPacket(t, &rdmanet.Addr{
		IP: netip.MustParseAddr("10.9.0.1"), Port: s.LocalAddr().(*rdmanet.Addr).Port,
	}).MaxPayload(), "of an Ethernet interface")
	for _, ifi := range []*net.Interface{va, interfaceOf(t, "127.0.0.1")} {
		_, err := s.JoinGroup(t.Context(), ifi, &rdmanet.Addr{IP: group1}, 0)
		require.NoError(t, err, "the same group on two interfaces")
	}
	a := listenPacket(t, "rdma-ud", "10.9.0.1:0")
	says(t, a, &rdmanet.Addr{IP: group1}, "on va")
	from := gets(t, s, "on va")
	require.Equal(t, "10.9.0.1", from.IP.String())
	b := listenPacket(t, "rdma-ud", "127.0.0.1:0")
	says(t, b, &rdmanet.Addr{IP: group1}, "on lo")
	from = gets(t, s, "on lo")
	says(t, s, from, "back")
	gets(t, b, "back")
	for _, ifi := range []*net.Interface{va, interfaceOf(t, "127.0.0.1")} {
		require.NoError(t, s.LeaveGroup(ifi, &rdmanet.Addr{IP: group1}))
	}
	says(t, a, &rdmanet.Addr{IP: group1}, "nobody")
	getsNothing(t, s)
	// A link-local service.
	l := listenPacket(t, "rdma-ud", "[fe80::a%va]:0")
	d := dialPacket(t, l.LocalAddr())
	_, err := d.Write([]byte("link"))
	require.NoError(t, err)
	from = gets(t, l, "link")
	require.Equal(t, "va", from.IP.Zone())
	says(t, l, from, "local")
	gets(t, d, "local")

	var wg sync.WaitGroup
	rounds := 12
	if long {
		rounds = 125
	}
	for i := range 8 {
		wg.Go(func() {
			for range rounds {
				c, err := rdmanet.ListenMulticast("rdma-ud", va, &rdmanet.Addr{IP: []netip.Addr{group1, netip.MustParseAddr("ff15::7373:3")}[i%2]})
				if err != nil {
					t.Error(err)
					return
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	require.Empty(t, memberships(t), "all has been left")
}

// A peer that is written on the verbs, as one in C is: it looks the service up, and is looked up.
func TestPacketRawPeer(t *testing.T) {
	s := localPacket(t)
	service := s.LocalAddr().(*rdmanet.Addr).AddrPort()
	id, err := cm.Default().Resolve(t.Context(), "", verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: service})
	require.NoError(t, err)
	defer id.Close()
	raw := newRawEnd(t, id)
	found, err := id.(verbs.UDCMID).Lookup(t.Context(), []byte("private"))
	require.NoError(t, err)
	require.Equal(t, s.LocalAddr().(*rdmanet.Addr).UD.QPN, found.QPN)
	raw.send(found, "raw question", 77)
	in := []rdmanet.Message{{Buffers: [][]byte{make([]byte, 100)}}}
	require.NoError(t, s.SetReadDeadline(time.Now().Add(soon)))
	_, err = s.ReadBatch(in, 0)
	require.NoError(t, err)
	require.Equal(t, "raw question", string(in[0].Buffers[0][:in[0].N]))
	require.True(t, in[0].HasImm)
	require.EqualValues(t, 77, in[0].Imm)
	_, err = s.WriteBatch([]rdmanet.Message{{Buffers: [][]byte{[]byte("answer")}, Addr: in[0].Addr, HasImm: true, Imm: 78}}, 0)
	require.NoError(t, err)
	text, wc := raw.receive()
	require.Equal(t, "answer", text)
	require.EqualValues(t, 78, wc.Imm)
	require.Equal(t, found.QPN, wc.SrcQPN)

	l, err := cm.Default().Listen(t.Context(), "", verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(service.Addr(), 0), Backlog: 4})
	require.NoError(t, err)
	defer l.Close()
	go func() {
		req, err := l.Parts[0].GetRequest(context.Background())
		if err == nil {
			_ = req.(verbs.UDCMID).Reply(raw.qp.Num(), 0, []byte("whatever"))
			req.Close()
		}
	}()
	d := dialPacket(t, rdmanet.AddrFromAddrPort(l.Addr()))
	_, err = d.Write([]byte("hello"))
	require.NoError(t, err)
	text, wc = raw.receive()
	require.Equal(t, "hello", text)
	raw.send(&verbs.UDParam{
		AH: verbs.AHAttr{Local: service.Addr(), Remote: service.Addr()}, QPN: wc.SrcQPN, QKey: verbs.UDPQKey,
	}, "hello yourself", 0)
	gets(t, d, "hello yourself")
}

// rawEnd is a queue pair for datagrams, with memory.
type rawEnd struct {
	t     *testing.T
	pd    verbs.PD
	cq    verbs.CQ
	qp    verbs.QP
	mr    verbs.MR
	close []func() error
}

func newRawEnd(t *testing.T, id verbs.CMID) *rawEnd {
	r := &rawEnd{t: t}
	var err error
	r.pd, err = id.Device().AllocPD()
	require.NoError(t, err)
	arena, err := r.pd.NewArena(1 << 16)
	require.NoError(t, err)
	r.mr, err = r.pd.RegMR(arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	r.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 16})
	require.NoError(t, err)
	r.qp, err = id.CreateQP(r.pd, &verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1,
	})
	require.NoError(t, err)
	r.close = append(r.close, r.qp.Close, r.cq.Close, r.mr.Close, arena.Close, r.pd.Close)
	t.Cleanup(func() {
		for _, f := range r.close {
			require.NoError(t, f())
		}
	})
	for i := range 2 {
		_, err = r.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i + 1), SGL: []verbs.SGE{{Addr: r.mr.Addr() + uint64(i+1)*5000, Length: 4096 + verbs.GRHLen, LKey: r.mr.LKey()}}}})
		require.NoError(t, err)
	}
	return r
}

func (r *rawEnd) send(to *verbs.UDParam, text string, imm uint32) {
	ah, err := r.pd.CreateAH(&to.AH)
	require.NoError(r.t, err)
	n := copy(r.mr.Bytes(), text)
	_, err = r.qp.PostSend([]verbs.SendWR{{
		Op: verbs.OpSendWithImm, Imm: imm, Flags: verbs.Signaled, AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey,
		SGL: []verbs.SGE{{Addr: r.mr.Addr(), Length: uint32(n), LKey: r.mr.LKey()}},
	}})
	require.NoError(r.t, err)
	require.Equal(r.t, verbs.WCSend, r.poll().Op)
	require.NoError(r.t, ah.Close())
}

func (r *rawEnd) receive() (string, verbs.WC) {
	wc := r.poll()
	require.Equal(r.t, verbs.WCRecv, wc.Op)
	at := int(wc.ID) * 5000
	return string(r.mr.Bytes()[at+verbs.GRHLen : at+int(wc.ByteLen)]), wc
}

func (r *rawEnd) poll() verbs.WC {
	var wc [1]verbs.WC
	require.Eventually(r.t, func() bool {
		n, err := r.cq.Poll(wc[:])
		require.NoError(r.t, err)
		return n == 1
	}, soon, time.Millisecond)
	require.Equal(r.t, verbs.Success, wc[0].Status)
	return wc[0]
}
