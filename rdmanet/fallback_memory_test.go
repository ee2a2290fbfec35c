package rdmanet

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestDetours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		x := &dialing{Dialer: new(Dialer)}
		a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
		both := []netip.AddrPort{a, b}
		on := new(totals)
		worth := func() []netip.AddrPort {
			w, _ := m.worth(x, both)
			return w
		}
		assert.Equal(t, both, worth())
		assert.True(t, m.remember(x, both[:1], on, "refused"))
		w, known := m.worth(x, both)
		assert.Equal(t, both[1:], w, "the other one is tried")
		assert.Same(t, on, known)
		other := &dialing{Dialer: &Dialer{Device: "mlx5_0"}}
		w, _ = m.worth(other, both)
		assert.Equal(t, both, w, "another device may reach it")

		time.Sleep(detourTime - 1)
		assert.Equal(t, both[1:], worth())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, both, worth(), "a minute later one dial tries")
		assert.Equal(t, both[1:], worth(), "and others wait for what it finds")
		time.Sleep(probeTime)
		assert.Equal(t, both, worth(), "unless it finds nothing out")

		assert.False(t, m.remember(x, both[:1], on, "refused"), "no news")
		assert.True(t, m.remember(x, both[:1], on, "silent"))
		m.forget(x, a)
		assert.Equal(t, both, worth())
		assert.True(t, m.remember(x, both[:1], on, "silent"), "news once RDMA has worked in between")
	})
}

// What is remembered is bounded, and what ends first goes first.
func TestDetoursAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m memory
		x := &dialing{Dialer: new(Dialer)}
		addr := func(i int) []netip.AddrPort {
			return []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("10.0.%d.%d:80", i/256, i%256))}
		}
		for i := range 2 * maxDetours {
			m.remember(x, addr(i), nil, "refused")
			time.Sleep(time.Millisecond)
		}
		assert.Len(t, m.m, maxDetours)
		for _, i := range []int{0, maxDetours - 1} {
			w, _ := m.worth(x, addr(i))
			assert.NotEmpty(t, w)
		}
		for _, i := range []int{maxDetours, 2*maxDetours - 1} {
			w, _ := m.worth(x, addr(i))
			assert.Empty(t, w)
		}
	})
}
