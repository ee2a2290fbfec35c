//go:build cgo

package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestEndpoints: only datagrams may lead nowhere or to a group.
func TestEndpoints(t *testing.T) {
	ap, none := netip.MustParseAddrPort, netip.AddrPort{}
	for _, c := range []struct {
		remote, local, to, from netip.AddrPort
		rc, ud                  error // what is wrong with it
	}{
		{remote: ap("10.0.0.1:7"), to: ap("10.0.0.1:7")},
		{remote: ap("[::ffff:10.0.0.1]:7"), local: ap("[::ffff:10.0.0.2]:0"), to: ap("10.0.0.1:7"), from: ap("10.0.0.2:0")},
		{remote: ap("0.0.0.0:7"), local: ap("0.0.0.0:9"), to: ap("127.0.0.1:7"), from: ap("0.0.0.0:9")},
		{remote: ap("[::]:7"), local: ap("[::]:9"), to: ap("[::1]:7"), from: ap("[::]:9")},
		{remote: ap("239.0.0.1:0"), to: ap("239.0.0.1:0"), rc: syscall.ENETUNREACH},
		{remote: ap("[ff0e::1]:0"), local: ap("[fd09::1]:0"), to: ap("[ff0e::1]:0"), from: ap("[fd09::1]:0"), rc: syscall.ENETUNREACH},
		{remote: none, local: ap("10.0.0.2:5"), to: none, from: ap("10.0.0.2:5"), rc: syscall.EINVAL},
		{remote: ap("[fe80::1]:5"), rc: syscall.EINVAL, ud: syscall.EINVAL},
	} {
		for ps, want := range map[verbs.PortSpace]error{verbs.PSTCP: c.rc, verbs.PSIB: c.rc, verbs.PSUDP: c.ud, verbs.PSIPoIB: c.ud} {
			to, from, err := endpoints(&verbs.CMIDAttr{PortSpace: ps, Remote: c.remote, Local: c.local})
			require.ErrorIs(t, err, want, "%v %v", ps, c)
			if want == nil {
				require.Equal(t, c.to, to, "%v %v", ps, c)
				require.Equal(t, c.from, from, "%v %v", ps, c)
			}
		}
	}
}

// TestFindGID: the newest version of RoCE, on the port and the interface that are asked for.
func TestFindGID(t *testing.T) {
	a, ll := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::1")
	list := []gidEntry{
		{gid: ll, port: 1, index: 0, ifindex: 2, version: 1},
		{gid: ll, port: 1, index: 1, ifindex: 2, version: 2},
		{gid: a, port: 1, index: 2, ifindex: 2, version: 2},
		{gid: a, port: 1, index: 3, ifindex: 2, version: 1},
		{gid: a, port: 2, index: 4, ifindex: 3, version: 2},
		{gid: ll, port: 1, index: 5, ifindex: 7, version: 2},
	}
	for _, c := range []struct {
		local         string
		port, ifindex int
		want          int
	}{
		{"10.0.0.1", 0, 0, 2}, {"::ffff:10.0.0.1", 1, 0, 2}, {"10.0.0.1", 2, 0, 4}, {"fe80::1%x", 0, 7, 5}, {"fe80::1", 0, 0, 1},
		{"10.0.0.2", 0, 0, -1}, {"10.0.0.1", 3, 0, -1}, {"fe80::1%x", 0, 9, -1},
	} {
		e, ok := findGID(list, &verbs.AHAttr{Local: netip.MustParseAddr(c.local), Port: c.port}, c.ifindex)
		require.Equal(t, c.want >= 0, ok, "%+v", c)
		if ok {
			require.Equal(t, c.want, e.index, "%+v", c)
		}
	}
}

// TestPortGID: on InfiniBand the own address is the port's, whatever IP address it has; on RoCE it has to be there.
func TestPortGID(t *testing.T) {
	ib := netip.MustParseAddr("fe80::2:c903:1:2")
	d := &device{name: "fake0", port: []portAttrs{{}, {}}}
	d.gids.list = []gidEntry{{gid: ib, port: 1, index: 1}, {gid: ib, port: 1, index: 0}, {gid: ib, port: 2, index: 0}}
	for port, want := range []int{1, 1, 2} {
		e, err := d.ownGID(&verbs.AHAttr{Local: netip.MustParseAddr("10.0.0.9"), Port: port})
		require.NoError(t, err)
		require.Equal(t, gidEntry{gid: ib, port: want, index: 0}, e)
	}
	d.port[1].ethernet = true
	_, ok := d.portGID(d.gids.list, 0)
	require.False(t, ok)
	_, ok = d.portGID(d.gids.list, 2)
	require.False(t, ok)
	_, ok = d.portGID(d.gids.list, 1)
	require.True(t, ok)
}

// newTestUD is an identifier of a device that is not there, without C's.
func newTestUD(ethernet bool) *udcmid {
	d := &device{name: "fake0", port: []portAttrs{{ethernet: ethernet}}}
	c := &cmid{dev: d, active: true, gone: make(chan struct{}), local: netip.MustParseAddrPort("10.0.0.1:5")}
	c.forDatagrams(verbs.PSUDP, 0)
	c.ud.port = 1
	return c.ud
}

// TestWhichGroup: on RoCE the MGID is the address, on InfiniBand it is taken as it is.
func TestWhichGroup(t *testing.T) {
	addr := netip.MustParseAddr
	for _, c := range []struct {
		ethernet bool
		attr     verbs.JoinAttr
		want     groupAddr
		ok       bool
	}{
		{true, verbs.JoinAttr{Group: addr("239.1.1.1")}, groupAddr{addr: addr("239.1.1.1")}, true},
		{true, verbs.JoinAttr{Group: addr("::ffff:239.1.1.1")}, groupAddr{addr: addr("239.1.1.1")}, true},
		{true, verbs.JoinAttr{MGID: addr("::ffff:239.1.1.1")}, groupAddr{addr: addr("239.1.1.1")}, true},
		{false, verbs.JoinAttr{MGID: addr("ff12:401b:ffff::1")}, groupAddr{addr: addr("ff12:401b:ffff::1"), raw: true}, true},
		{false, verbs.JoinAttr{MGID: addr("::")}, groupAddr{addr: addr("::"), raw: true}, true},
		{false, verbs.JoinAttr{Group: addr("0.0.0.0")}, groupAddr{addr: addr("0.0.0.0")}, true},
		{true, verbs.JoinAttr{Group: addr("10.1.1.1")}, groupAddr{}, false},
		{false, verbs.JoinAttr{MGID: addr("fe80::1")}, groupAddr{}, false},
		{true, verbs.JoinAttr{Group: addr("239.1.1.1"), MGID: addr("ff0e::1")}, groupAddr{}, false},
		{true, verbs.JoinAttr{}, groupAddr{}, false},
		{true, verbs.JoinAttr{MGID: addr("239.1.1.1")}, groupAddr{}, false},
	} {
		g, err := newTestUD(c.ethernet).group(&c.attr)
		if !c.ok {
			require.ErrorIs(t, err, syscall.EINVAL, "%+v", c.attr)
			continue
		}
		require.NoError(t, err, "%+v", c.attr)
		require.Equal(t, c.want, g)
	}
}

// TestGroupAddr: what tells memberships apart is the port of an IP address, and of a GID the service.
func TestGroupAddr(t *testing.T) {
	g := groupAddr{addr: netip.MustParseAddr("239.1.2.3"), number: 7}
	c := g.c()
	require.EqualValues(t, 4, c.family)
	require.EqualValues(t, 7, c.port)
	g = groupAddr{addr: netip.MustParseAddr("ff12::1"), raw: true, number: 9}
	c = g.c()
	require.EqualValues(t, 16, c.family)
	require.EqualValues(t, 9, c.port)
	require.EqualValues(t, 0xff, c.ip[0])
}

// TestLostMembership: who waits is told first, who has joined is told of the loss, and a stranger's word is nobody's.
func TestLostMembership(t *testing.T) {
	u := newTestUD(false)
	events := make(chan verbs.Event, 2)
	u.SetHandler(func(e verbs.Event) { events <- e })
	m := &membership{token: 5, done: make(chan cmEvent, 1)}
	u.groups[m.token] = m
	u.onCM(&cmEvent{kind: cmJoinError, group: 6, status: -int(syscall.ENETRESET)})
	u.onCM(&cmEvent{kind: cmJoinError, group: 5, status: -int(syscall.ENODEV)})
	ev := <-m.done
	_, err := u.joined(m, &ev)
	require.ErrorIs(t, err, syscall.ENODEV)
	_, err = u.joined(m, &cmEvent{kind: cmJoinError})
	require.ErrorIs(t, err, syscall.EIO, "an error without one")

	m.param = &verbs.UDParam{AH: verbs.AHAttr{Remote: netip.MustParseAddr("ff12::1")}}
	u.onCM(&cmEvent{kind: cmJoinError, group: 5, status: -int(syscall.ENETRESET)})
	e := <-events
	require.Equal(t, verbs.EventMulticastError, e.Type)
	require.ErrorIs(t, e.Err, syscall.ENETRESET)
	require.Equal(t, m.param, e.Group)
	require.NoError(t, u.Leave(e.Group))
	require.ErrorIs(t, u.Leave(e.Group), syscall.EADDRNOTAVAIL)
	u.onCM(&cmEvent{kind: cmAddrChange})
	require.Equal(t, verbs.EventAddrChange, (<-events).Type)
	require.Empty(t, events)
}

// TestRefusedMembership: the kernel's EINVAL may mean that the device goes, of which word comes later.
func TestRefusedMembership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			group     string
			err, want error
			removal   bool
			took      time.Duration
		}{
			{"239.0.0.1", syscall.EINVAL, syscall.ENODEV, true, 0},
			{"239.0.0.1", syscall.EINVAL, syscall.EINVAL, false, removalWord},
			{"0.0.0.0", syscall.EINVAL, syscall.EINVAL, true, 0},
			{"239.0.0.1", syscall.ENOMEM, syscall.ENOMEM, true, 0},
		} {
			u, begin := newTestUD(true), time.Now()
			m := &membership{token: 1, asked: groupAddr{addr: netip.MustParseAddr(c.group)}, done: make(chan cmEvent, 1)}
			u.groups[1] = m
			if c.removal {
				m.end(cmEvent{kind: cmRemoval})
			}
			require.Equal(t, c.want, u.refused(m, c.err))
			require.Equal(t, c.took, time.Since(begin))
			require.Empty(t, u.groups)
		}
	})
}

// TestAnswer: what a SIDR_REP says.
func TestAnswer(t *testing.T) {
	u := newTestUD(true)
	p, err := u.answer(&cmEvent{kind: cmEstablished, ud: &verbs.UDParam{QPN: 3}})
	require.NoError(t, err)
	require.Equal(t, &verbs.UDParam{QPN: 3, AH: verbs.AHAttr{Local: netip.MustParseAddr("10.0.0.1"), Port: 1}}, p)
	_, err = u.answer(&cmEvent{kind: cmUnreachable, status: 2, param: verbs.ConnParam{PrivateData: []byte("no")}})
	refused := new(verbs.LookupError)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, verbs.LookupError{Status: verbs.SIDRRejected, PrivateData: []byte("no")}, *refused)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = u.answer(&cmEvent{kind: cmUnreachable, status: -int(syscall.ETIMEDOUT)})
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	_, err = u.answer(&cmEvent{kind: cmRemoval})
	require.ErrorIs(t, err, syscall.ENODEV)
}

// TestDatagramRefusals: what an identifier for datagrams has no use for never reaches C.
func TestDatagramRefusals(t *testing.T) {
	u := newTestUD(true)
	_, err := u.Connect(context.Background(), &verbs.ConnParam{})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, u.Accept(&verbs.ConnParam{}), syscall.EINVAL)
	require.ErrorIs(t, u.Reply(1, 5, nil), errors.ErrUnsupported, "a Q_Key that the kernel has no place for")
	require.ErrorIs(t, u.Reply(1, 0, make([]byte, verbs.MaxPrivateSIDRREP+1)), syscall.EINVAL)
	require.ErrorIs(t, u.Reject(make([]byte, verbs.MaxPrivateSIDRREP+1)), syscall.EINVAL)
	_, err = u.Lookup(context.Background(), make([]byte, verbs.MaxPrivateSIDRREQ+1))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.NoError(t, u.Disconnect())
	_, err = u.CreateQP(&pd{dev: u.dev}, &verbs.QPInitAttr{Type: verbs.RC})
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = u.CreateQP(&pd{dev: &device{}}, &verbs.QPInitAttr{Type: verbs.UD})
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestDatagramLength: one packet is the limit, inline or not.
func TestDatagramLength(t *testing.T) {
	q := &qp{dev: &device{name: "fake0", maxMsg: 1 << 20}, typ: verbs.UD, caps: verbs.QPCap{MaxSendSGE: 1, MaxInline: 4096}}
	q.mtu.Store(1024)
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpSend, Inline: make([]byte, 1024)}))
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpSend, Inline: make([]byte, 1025)}), syscall.EMSGSIZE)
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpSendWithImm, SGL: []verbs.SGE{{Length: 1025}}}), syscall.EMSGSIZE)
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpWrite}), errors.ErrUnsupported)
}

// TestLookAtGRH: the address family is that of the header in memory, if that is still there.
func TestLookAtGRH(t *testing.T) {
	p := &pd{mrs: make(map[uint32]*mr)}
	mem := make([]byte, 100)
	p.list(&mr{lkey: 3, addr: 1000, mem: mem})
	q := &qp{pd: p, typ: verbs.UD, ethernet: true}
	look := func(at buffer) verbs.WCFlags {
		w := verbs.WC{Flags: verbs.WCGRH}
		q.lookAtGRH(&w, at)
		return w.Flags
	}
	copy(mem[10:], unhex(t, seenV4))
	require.Equal(t, verbs.WCGRH|verbs.WCGRHv4, look(buffer{1010, 3}))
	copy(mem[10:], unhex(t, seenV6))
	require.Equal(t, verbs.WCGRH, look(buffer{1010, 3}))
	require.Equal(t, verbs.WCGRH, look(buffer{1060, 3}), "the last place where one fits")
	for _, gone := range []buffer{{1061, 3}, {999, 3}, {1101, 3}, {^uint64(0), 3}, {1010, 4}, {}} {
		require.Zero(t, look(gone), "%v", gone)
	}
	q.ethernet = false
	copy(mem[10:], unhex(t, seenV4))
	require.Equal(t, verbs.WCGRH, look(buffer{1010, 3}), "InfiniBand's")
}

// TestIPoIBRefused: the kernel's EINVAL gets its reason, where it is one.
func TestIPoIBRefused(t *testing.T) {
	p := New(&Config{Root: fakeRoot(t, map[string]string{"sys/class/infiniband/roce0/ports/1/link_layer": "Ethernet\n"})})
	require.ErrorIs(t, p.spaceFailure(verbs.PSIPoIB, syscall.EINVAL), errors.ErrUnsupported)
	require.Equal(t, syscall.EINVAL, p.spaceFailure(verbs.PSUDP, syscall.EINVAL))
	require.Equal(t, syscall.EADDRINUSE, p.spaceFailure(verbs.PSIPoIB, syscall.EADDRINUSE))
	p = New(&Config{Root: fakeRoot(t, map[string]string{
		"sys/class/infiniband/ib0/ports/1/link_layer":   "Ethernet\n",
		"sys/class/infiniband/ib0/ports/2/link_layer":   "InfiniBand\n",
		"sys/class/net/ibp1/device/infiniband/ib0/node": "",
		"sys/class/net/eth0/device/vendor":              "",
	})})
	require.Equal(t, syscall.EINVAL, p.spaceFailure(verbs.PSIPoIB, syscall.EINVAL))
	require.Equal(t, []string{"ibp1"}, p.host.interfaces("ib0"))
	require.Empty(t, p.host.interfaces("roce0"))
}
