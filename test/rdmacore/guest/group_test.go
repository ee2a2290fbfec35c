//go:build guest

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// member joins a group with an identifier that is resolved by it.
func member(t testing.TB, p verbs.Provider, group string, sendOnly bool) (*udEnd, *verbs.UDParam) {
	t.Helper()
	a := netip.MustParseAddr(group)
	e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0), Remote: netip.AddrPortFrom(a, 0)}))
	g, err := e.id.Join(within(t), &verbs.JoinAttr{Group: a, SendOnly: sendOnly})
	require.NoError(t, err)
	return e, g
}

// igmp tells whether the device's interface is a member of a group.
func igmp(t testing.TB, group string) bool {
	t.Helper()
	b := netip.MustParseAddr(group).As4()
	s, err := os.ReadFile("/proc/net/igmp")
	require.NoError(t, err)
	return strings.Contains(string(s), fmt.Sprintf("%02X%02X%02X%02X", b[3], b[2], b[1], b[0])) // as read on x86
}

// TestGroup: members receive what is sent to a group, senders who are only that do not, and who left does not.
func TestGroup(t *testing.T) {
	p := provider(t)
	const group, other = "239.2.3.4", "239.2.3.5"
	a, ga := member(t, p, group, false)
	require.EqualValues(t, verbs.MulticastQPN, ga.QPN)
	require.EqualValues(t, verbs.UDPQKey, ga.QKey)
	require.Equal(t, verbs.AHAttr{Local: at(0).Addr(), Remote: netip.MustParseAddr(group), HopLimit: 64, Port: 1}, ga.AH)
	b, gb := member(t, p, group, false)
	require.True(t, igmp(t, group))
	a.send(a.ah(ga.AH), ga.QPN, ga.QKey, "to all")
	for _, e := range []*udEnd{a, b} { // the own one too
		d := e.next()
		require.Equal(t, "to all", d.data)
		require.Equal(t, a.qp.Num(), d.SrcQPN)
		require.NotZero(t, d.Flags&verbs.WCGRHv4)
		require.Equal(t, netip.MustParseAddr(group), d.grh.Dest)
		require.Equal(t, at(0).Addr(), d.grh.Source)
		if e == b {
			b.reply(&d, "to you alone")
			require.Equal(t, "to you alone", a.next().data)
		}
	}
	// One that only sends: no IGMP, nothing received.
	s, gs := member(t, p, other, true)
	require.False(t, igmp(t, other))
	s.send(s.ah(gs.AH), gs.QPN, gs.QKey, "to nobody")
	s.send(s.ah(ga.AH), ga.QPN, ga.QKey, "from outside")
	require.Equal(t, "from outside", a.next().data)
	require.Equal(t, "from outside", b.next().data)
	s.nothing()
	require.NoError(t, s.id.Leave(gs))

	// A second group of one member, which leaves the first.
	gb2, err := b.id.Join(within(t), &verbs.JoinAttr{MGID: netip.MustParseAddr("::ffff:" + other)})
	require.NoError(t, err, "on RoCE the MGID is the address")
	require.True(t, igmp(t, other))
	_, err = b.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr(other)})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, b.id.Leave(gb))
	require.ErrorIs(t, b.id.Leave(gb), syscall.EADDRNOTAVAIL)
	require.True(t, igmp(t, group), "a is a member")
	a.send(a.ah(ga.AH), ga.QPN, ga.QKey, "to a")
	a.send(a.ah(gb2.AH), gb2.QPN, gb2.QKey, "to b")
	require.Equal(t, "to a", a.next().data)
	require.Equal(t, "to b", b.next().data)
	a.nothing()
	b.nothing()

	// Closing the queue pair leaves.
	require.NoError(t, b.qp.Close())
	require.False(t, igmp(t, other))
	require.ErrorIs(t, b.id.Leave(gb2), syscall.EADDRNOTAVAIL)
	_, err = b.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr(other)})
	require.Error(t, err)
	require.False(t, igmp(t, other))
	require.NoError(t, a.id.Leave(ga))
	require.False(t, igmp(t, group))
}

// TestGroupClasses: the traffic class of the identifier is that of its groups.
func TestGroupClasses(t *testing.T) {
	p := provider(t)
	a := netip.MustParseAddr("239.2.3.6")
	e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Device: *device, TrafficClass: 0x48}))
	require.Equal(t, netip.MustParseAddr("10.9.0.1"), e.id.LocalAddr().Addr(), "found by the device's name alone")
	g, err := e.id.Join(within(t), &verbs.JoinAttr{Group: a})
	require.NoError(t, err)
	e.send(e.ah(g.AH), g.QPN, g.QKey, "x")
	require.EqualValues(t, 0x48, e.next().grh.TrafficClass)
	e2 := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Device: *device, Remote: netip.AddrPortFrom(a, 0)}))
	require.Equal(t, netip.MustParseAddr("10.9.0.1"), e2.id.LocalAddr().Addr())
}

// TestGroupRefused: what is none, and what neither this kernel nor this device can do, is refused in words.
func TestGroupRefused(t *testing.T) {
	p := provider(t)
	e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
	v6 := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: netip.MustParseAddrPort("[fd09::1]:0"), Remote: netip.MustParseAddrPort("[ff0e::1234]:0")}))
	for _, c := range []struct {
		e    *udEnd
		attr verbs.JoinAttr
		is   error
		says string
	}{
		{e, verbs.JoinAttr{}, syscall.EINVAL, "neither or both"},
		{e, verbs.JoinAttr{Group: netip.MustParseAddr("192.168.1.1")}, syscall.EINVAL, "192.168.1.1 is no multicast address, which are 224.0.0.0 to"},
		{e, verbs.JoinAttr{MGID: netip.MustParseAddr("fd09::1")}, syscall.EINVAL, "no multicast address"},
		{e, verbs.JoinAttr{Group: netip.IPv4Unspecified()}, errors.ErrUnsupported, "a fresh group is what InfiniBand's subnet administrator gives"},
		{e, verbs.JoinAttr{MGID: netip.IPv6Unspecified()}, errors.ErrUnsupported, "a fresh group"},
		{v6, verbs.JoinAttr{Group: netip.MustParseAddr("ff0e::1234")}, errors.ErrUnsupported, "no IPv6 groups on RoCE"},
		{v6, verbs.JoinAttr{Group: netip.MustParseAddr("ff0e::1234"), SendOnly: true}, errors.ErrUnsupported, "no IPv6 groups on RoCE"},
	} {
		_, err := c.e.id.Join(within(t), &c.attr)
		require.ErrorIs(t, err, c.is, "%+v", c.attr)
		require.ErrorContains(t, err, c.says)
		t.Log(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := e.id.Join(ctx, &verbs.JoinAttr{Group: netip.MustParseAddr("239.9.9.9")})
	require.ErrorIs(t, err, context.Canceled)
	noQP := resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}).(verbs.UDCMID)
	_, err = noQP.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr("239.9.9.9")})
	require.ErrorContains(t, err, "no queue pair")
	to := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Remote: at(9)}))
	_, err = to.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr("239.9.9.9")})
	require.ErrorIs(t, err, syscall.EINVAL)
	t.Log(err)

	_, err = noQP.CreateQP(e.pd, &verbs.QPInitAttr{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq, BlockMulticastLoopback: true})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	t.Log(err)
	for _, attr := range []verbs.CMIDAttr{{Local: at(0)}, {Remote: at(9)}, {Local: at(0), Remote: netip.MustParseAddrPort("239.9.9.9:0")}} {
		attr.PortSpace = verbs.PSIPoIB
		_, err = p.Resolve(within(t), &attr)
		require.ErrorIs(t, err, errors.ErrUnsupported, "%+v", attr)
		require.ErrorContains(t, err, "port space IPOIB needs InfiniBand, and none of the devices")
	}
	t.Log(err)
	_, err = p.Listen(within(t), &verbs.ListenAttr{PortSpace: verbs.PSIPoIB, Local: at(0)})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	_, err = p.Resolve(within(t), &verbs.CMIDAttr{PortSpace: verbs.PSUDP, Remote: netip.MustParseAddrPort("239.9.9.9:0")})
	require.ErrorIs(t, err, syscall.ENETUNREACH, "there is no route to it, and nothing says which device")
	t.Log(err)
	require.False(t, igmp(t, "239.9.9.9"))
}

// TestMckey has mckey on the other side, in both roles, once and with four members each.
func TestMckey(t *testing.T) {
	const count, size = 5, 150
	for i, members := range []int{1, 4} {
		group := "239.3.0." + strconv.Itoa(i+1)
		args := []string{"-m", group, "-b", *addr, "-c", strconv.Itoa(members), "-C", strconv.Itoa(count), "-S", strconv.Itoa(size)}
		t.Run(fmt.Sprintf("sends to %d", members), func(t *testing.T) {
			p := provider(t)
			var ends []*udEnd
			for range members {
				e, _ := member(t, p, group, false)
				ends = append(ends, e)
			}
			c := start(t, "mckey", append(args, "-s")...)
			for _, e := range ends {
				from := map[uint32]int{}
				for range members * count {
					d := e.next()
					require.Len(t, d.data, size)
					require.Equal(t, d.SrcQPN, d.Imm)
					from[d.SrcQPN]++
				}
				require.Len(t, from, members)
				for _, n := range from {
					require.Equal(t, count, n)
				}
			}
			c.ends()
		})
		t.Run(fmt.Sprintf("receives with %d", members), func(t *testing.T) {
			p := provider(t)
			var ends []*udEnd
			var groups []*verbs.UDParam
			for range members {
				e, g := member(t, p, group, false)
				ends, groups = append(ends, e), append(groups, g)
			}
			c := start(t, "mckey", args...)
			c.until("receiving data transfers")
			require.Equal(t, members, strings.Count(c.String(), "joined dgid: ::ffff:"+group))
			for i, e := range ends {
				ah := e.ah(groups[i].AH)
				for range count {
					e.send(ah, groups[i].QPN, groups[i].QKey, "of Go")
				}
			}
			c.ends()
		})
	}
}

// counts are what a process has of the kernel, and its goroutines.
type counts struct{ goroutines, descriptors, ids, qps, regions int }

func count(t testing.TB) (c counts) {
	t.Helper()
	c.goroutines = runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	c.descriptors = len(fds)
	for what, n := range map[string]*int{"cm_id": &c.ids, "qp": &c.qps, "mr": &c.regions} {
		out, err := exec.Command("rdma", "resource", "show", what).Output()
		require.NoError(t, err)
		*n = strings.Count(string(out), " pid ") // a thread's; nobody else is there, and the kernel's own have none
	}
	return c
}

// settles waits until there is no more than before.
func settles(t testing.TB, before counts) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		now := count(t)
		if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors && now.ids <= before.ids &&
			now.qps <= before.qps && now.regions <= before.regions {
			return
		}
		require.True(t, time.Now().Before(deadline), "before %+v, now %+v", before, now)
	}
}

// TestJoins: a thousand joins and leaves from eight goroutines, on identifiers of their own and on one that is shared,
// some given up on the way, leave nothing.
func TestJoins(t *testing.T) {
	p := provider(t)
	t.Run("warm up", func(t *testing.T) { joins(t, p, 10) }) // what stays for good is made
	before := count(t)
	t.Run("joins", func(t *testing.T) { joins(t, p, 125) })
	settles(t, before)
	s, err := os.ReadFile("/proc/net/igmp")
	require.NoError(t, err)
	require.NotContains(t, string(s), "04EF", "239.4.0.0/16")
}

func joins(t *testing.T, p verbs.Provider, each int) {
	shared := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
	var wg sync.WaitGroup
	for i := range 8 {
		e := shared
		if i%2 == 0 {
			e = newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
		}
		wg.Go(func() {
			for n := range each {
				group := netip.AddrFrom4([4]byte{239, 4, byte(i), byte(n)})
				ctx, cancel := context.WithCancel(within(t))
				if n%8 == 7 { // at any moment
					go func() {
						time.Sleep(time.Duration(n) * 10 * time.Microsecond)
						cancel()
					}()
				}
				g, err := e.id.Join(ctx, &verbs.JoinAttr{Group: group, SendOnly: n%5 == 4})
				cancel()
				if err != nil {
					assert.ErrorIs(t, err, context.Canceled)
					continue
				}
				if n%16 == 3 {
					continue // closing leaves it
				}
				assert.NoError(t, e.id.Leave(g))
			}
		})
	}
	wg.Wait()
	c := count(t)
	require.GreaterOrEqual(t, c.ids, 5, "%+v", c)
	require.GreaterOrEqual(t, c.qps, 5, "%+v", c)
	require.GreaterOrEqual(t, c.regions, 5, "%+v", c)
}

// TestJoinWhileClosing closes identifiers and queue pairs while they join.
func TestJoinWhileClosing(t *testing.T) {
	p := provider(t)
	for range runtime.GOMAXPROCS(0) { // which keep the device open, and its completion channels
		newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
	}
	before := count(t)
	t.Run("close", func(t *testing.T) {
		for n := range 40 {
			e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					_, err := e.id.Join(within(t), &verbs.JoinAttr{Group: netip.AddrFrom4([4]byte{239, 5, byte(n), byte(i)})})
					if err != nil {
						assert.NotErrorIs(t, err, context.DeadlineExceeded)
					}
				})
			}
			time.Sleep(time.Duration(n) * 50 * time.Microsecond)
			if n%2 == 0 {
				assert.NoError(t, e.qp.Close())
			}
			assert.NoError(t, e.id.Close())
			wg.Wait()
		}
	})
	settles(t, before)
	s, err := os.ReadFile("/proc/net/igmp")
	require.NoError(t, err)
	require.NotContains(t, string(s), "05EF", "239.5.0.0/16")
}
