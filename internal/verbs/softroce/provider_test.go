package softroce

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestResolveErrors: what is wrong before anything is sent.
func TestResolveErrors(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := simnet.New(1, simnet.Options{})
		a := New(&Config{Open: n.Host(addrA).Open, Name: "here0"})
		to := netip.AddrPortFrom(addrB, 7)
		canceled, cancel := context.WithCancel(background())
		cancel()
		for name, c := range map[string]struct {
			attr verbs.CMIDAttr
			ctx  context.Context
			want error
		}{
			"no device":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Device: "softroce0"}, nil, verbs.ErrNoDevice},
			"no port":         {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Port: 2}, nil, verbs.ErrNoDevice},
			"port space":      {verbs.CMIDAttr{PortSpace: verbs.PortSpace(0x222), Remote: to}, nil, errors.ErrUnsupported},
			"no route":        {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB6, 7)}, nil, syscall.ENETUNREACH},
			"multicast":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("239.1.1.1:7")}, nil, syscall.ENETUNREACH},
			"no address":      {verbs.CMIDAttr{PortSpace: verbs.PSTCP}, nil, syscall.EINVAL},
			"another's":       {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Local: netip.AddrPortFrom(addrB, 0)}, nil, syscall.EADDRNOTAVAIL},
			"context":         {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to}, canceled, context.Canceled},
			"the port, taken": {verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, Local: netip.AddrPortFrom(addrA, 77)}, nil, syscall.EADDRINUSE},
		} {
			l := mustListen(t, a, netip.MustParseAddrPort("0.0.0.0:77"), nil)
			if c.ctx == nil {
				c.ctx = background()
			}
			id, err := a.Resolve(c.ctx, &c.attr)
			require.ErrorIs(t, err, c.want, name)
			require.Nil(t, id)
			require.NoError(t, l.Close())
			unused(t, a)
		}

		// A port of choice, and its freedom afterwards.
		for range 2 {
			id, err := a.Resolve(background(), &verbs.CMIDAttr{
				PortSpace: verbs.PSTCP, Remote: to, Device: "here0", Port: 1, Local: netip.AddrPortFrom(addrA, 78),
			})
			require.NoError(t, err)
			require.Equal(t, netip.AddrPortFrom(addrA, 78), id.LocalAddr())
			require.NoError(t, id.Close())
			require.NoError(t, id.Close())
			require.NoError(t, id.Disconnect())
		}
		// The unspecified address is this host.
		id, err := a.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.MustParseAddrPort("0.0.0.0:7")})
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddrPort("127.0.0.1:7"), id.RemoteAddr())
		require.NoError(t, id.Close())
		unused(t, a)
	})
}

// TestNoNetwork: a network that cannot be opened is a device that cannot be used.
func TestNoNetwork(t *testing.T) {
	cause := &netio.PortBusyError{Port: 4791, UID: 1000}
	p := New(&Config{Open: func(netio.Handler) (netio.Conn, error) { return nil, cause }})
	infos, err := p.Devices()
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.Equal(t, "softroce0", infos[0].Name)
	require.ErrorIs(t, infos[0].Unusable, verbs.ErrNoDevice)
	for name, err := range map[string]error{
		"Resolve": second(p.Resolve(background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(addrB, 7)})),
		"Listen":  second(p.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP})),
		"Open":    second(p.Open("softroce0")),
	} {
		require.ErrorIs(t, err, verbs.ErrNoDevice, name)
		require.ErrorIs(t, err, syscall.EADDRINUSE, name)
		require.ErrorContains(t, err, "uid 1000", name)
	}
	_, err = p.Open("")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.NotErrorIs(t, err, syscall.EADDRINUSE)
	require.NoError(t, p.Drain(background()))
}

func second[T any](_ T, err error) error { return err }

// TestReopen: the device comes and goes with its users.
func TestReopen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCMNet(simnet.Options{})
		var slots []uint8
		for range 3 {
			l := mustListen(t, n.b, netip.AddrPortFrom(addrB, 7471), nil)
			x, y := n.connect(t, l)
			x.ping(y)
			slots = append(slots, x.id.Device().(*device).slot)
			x.close()
			y.close()
			require.NoError(t, l.Close())
			unused(t, n.a, n.b)
		}
		require.NotContains(t, slots, uint8(0))
		dev, err := n.a.Open("softroce0")
		require.NoError(t, err)
		infos, err := n.a.Devices()
		require.NoError(t, err)
		require.Equal(t, []netip.Addr{addrA, addrA6}, infos[0].Ports[0].GIDs)
		require.NoError(t, infos[0].Unusable)
		require.NoError(t, dev.Close())
		unused(t, n.a)
	})
}
