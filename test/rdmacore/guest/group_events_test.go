//go:build guest

package guest

import (
	"net/netip"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// recorder collects the events of an identifier.
type recorder chan verbs.Event

func (r recorder) next(t testing.TB) verbs.Event {
	t.Helper()
	select {
	case e := <-r:
		return e
	case <-time.After(limit):
		require.Fail(t, "no event")
		return verbs.Event{}
	}
}

// TestDatagramRemoval takes the device away from members of groups, from those who are about to join, and from one who asks for a
// service: all are told, all can be closed, the kernel does not wait for this process, and nobody is a member any more.
func TestDatagramRemoval(t *testing.T) {
	p := provider(t)
	group := netip.MustParseAddr("239.6.0.1")
	events := make(recorder, 16)
	e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0), Handler: func(ev verbs.Event) { events <- ev }}))
	g, err := e.id.Join(within(t), &verbs.JoinAttr{Group: group})
	require.NoError(t, err)
	kept, err := e.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr("239.6.0.2")})
	require.NoError(t, err)
	ah := e.ah(g.AH)
	l := listenUD(t, p, 0)
	asking := resolveUD(t, p, verbs.CMIDAttr{Remote: l.Addr()}).(verbs.UDCMID)
	answer := make(chan error, 1)
	go func() {
		_, err := asking.Lookup(within(t), nil)
		answer <- err
	}()
	r, err := l.GetRequest(within(t))
	require.NoError(t, err)
	closes(t, r)
	var wg sync.WaitGroup
	for i := range 3 {
		j := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
		wg.Go(func() {
			for n := 0; ; n++ {
				g, err := j.id.Join(within(t), &verbs.JoinAttr{Group: netip.AddrFrom4([4]byte{239, 6, byte(1 + i), byte(n)})})
				if err == nil && n%3 != 0 {
					err = j.id.Leave(g)
				}
				if err != nil {
					assert.ErrorIs(t, err, syscall.ENODEV)
					return
				}
				if n > 200 {
					assert.NoError(t, j.qp.Close()) // which leaves those that were kept, all at once
					return
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	removed := rdma(t, "link", "del", *device)
	ev := events.next(t)
	require.Equal(t, verbs.EventDeviceRemoval, ev.Type)
	require.ErrorIs(t, ev.Err, syscall.ENODEV)
	t.Log(ev.Err)
	require.ErrorIs(t, <-answer, syscall.ENODEV)
	wg.Wait()
	require.NoError(t, <-removed)
	t.Logf("removed after %v", time.Since(begin))
	_, err = e.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr("239.6.0.3")})
	require.ErrorIs(t, err, syscall.ENODEV)
	_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, AH: ah, RemoteQPN: g.QPN, RemoteQKey: g.QKey}})
	require.ErrorIs(t, err, syscall.ENODEV)
	_, err = e.pd.CreateAH(&g.AH)
	require.ErrorIs(t, err, syscall.ENODEV)
	for _, g := range []*verbs.UDParam{g, kept} {
		if err := e.id.Leave(g); err != nil {
			require.ErrorIs(t, err, syscall.ENODEV)
		}
	}
	require.NoError(t, <-rdma(t, "link", "add", *device, "type", "rxe", "netdev", *iface))
	for i := range byte(4) {
		for n := range byte(4) {
			require.False(t, igmp(t, netip.AddrFrom4([4]byte{239, 6, i, n}).String()))
		}
	}
	// It serves again.
	var again *udEnd
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		id, err := p.Resolve(within(t), &verbs.CMIDAttr{PortSpace: verbs.PSUDP, Local: at(0)})
		if err == nil {
			closes(t, id)
			again = newUD(t, id)
			break
		}
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
	g, err = again.id.Join(within(t), &verbs.JoinAttr{Group: group})
	require.NoError(t, err)
	again.send(again.ah(g.AH), g.QPN, g.QKey, "again")
	require.Equal(t, "again", again.next().data)
}

// TestAddrChange lets the bond that the device is on change to its other interface, and with it the hardware address: identifiers
// are told, and what was joined is still to be left.
func TestAddrChange(t *testing.T) {
	p := provider(t)
	events := make(recorder, 16)
	e := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0), Handler: func(ev verbs.Event) { events <- ev }}))
	g, err := e.id.Join(within(t), &verbs.JoinAttr{Group: netip.MustParseAddr("239.7.0.1")})
	require.NoError(t, err)
	out, err := exec.Command("ip", "link", "set", *iface, "type", "bond", "active_slave", "slave1").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, verbs.EventAddrChange, events.next(t).Type)
	e.send(e.ah(g.AH), g.QPN, g.QKey, "still here")
	require.Equal(t, "still here", e.next().data)
	require.NoError(t, e.id.Leave(g))
}
