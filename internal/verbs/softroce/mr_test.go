package softroce

import (
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func TestKeysAndAddressesAreNotToBeGuessed(t *testing.T) {
	_, a, _ := pair(t, 1, simnet.Options{})
	keys, pages := map[uint32]bool{}, map[uint64]bool{}
	var high, low uint32
	for range 1000 {
		m := a.reg(a.mem[8:16], verbs.LocalWrite)
		require.Equal(t, m.LKey(), m.RKey())
		keys[m.RKey()] = true
		pages[m.Addr()>>12] = true
		require.EqualValues(t, 8, m.Addr()%uint64(pageSize), "the place in the page is kept, for the alignment of atomics")
		high |= m.RKey()
		low |= ^m.RKey()
		require.NoError(t, m.Close())
	}
	require.Len(t, keys, 1000)
	require.Len(t, pages, 1000)
	require.Equal(t, ^uint32(0), high)
	require.Equal(t, ^uint32(0), low)
	require.False(t, keys[0])
}

func TestRangesOfARegion(t *testing.T) {
	const top = ^uint64(0)
	low, high := mr{addr: 100, size: 50}, mr{addr: top - 49, size: 49}
	for _, c := range []struct {
		m       *mr
		addr, n uint64
		off     uint64
		ok      bool
	}{
		{&low, 100, 50, 0, true}, {&low, 149, 1, 49, true}, {&low, 150, 0, 50, true},
		{&low, 100, 51, 0, false}, {&low, 149, 2, 0, false}, {&low, 150, 1, 0, false}, {&low, 151, 0, 0, false},
		{&low, 99, 1, 0, false}, {&low, 99, 2, 0, false}, {&low, 0, 150, 0, false},
		{&low, top, 1, 0, false}, {&low, top, 102, 0, false}, {&low, 120, top, 0, false}, {&low, 120, top - 19, 0, false},
		{&high, top - 49, 49, 0, true}, {&high, top - 49, 50, 0, false}, {&high, top - 1, 1, 48, true},
		{&high, top - 50, 1, 0, false}, {&high, 0, 1, 0, false}, {&high, top, 1, 0, false},
	} {
		off, ok := c.m.offset(c.addr, c.n)
		require.Equal(t, c.ok, ok, "%+v", c)
		if ok {
			require.Equal(t, c.off, off)
		}
	}
}

func TestCloseWaitsForAccessInProgress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, _ := pair(t, 1, simnet.Options{})
		m := a.reg(a.mem[:100], verbs.LocalWrite).(*mr)
		require.True(t, m.hold())
		require.True(t, m.hold())
		closed := make(chan error, 1)
		go func() { closed <- m.Close() }()
		synctest.Wait()
		require.Empty(t, closed)
		require.False(t, m.hold(), "no access begins any more")
		require.Nil(t, a.dev.mrs.find(m.key))
		m.release()
		synctest.Wait()
		require.Empty(t, closed)
		m.release()
		require.NoError(t, <-closed)
		require.Nil(t, m.Bytes())
		require.NoError(t, m.Close())
	})
}

func TestMemoryIsClosedInOrder(t *testing.T) {
	_, a, _ := pair(t, 1, simnet.Options{})
	p, err := a.dev.AllocPD()
	require.NoError(t, err)
	arena, err := p.NewArena(4 * pageSize)
	require.NoError(t, err)
	mem := arena.Bytes()
	require.Len(t, mem, 4*pageSize)
	require.Equal(t, make([]byte, 4*pageSize), mem)
	m1, err := p.RegMR(mem[pageSize:], verbs.LocalWrite|verbs.RemoteWrite)
	require.NoError(t, err)
	m2, err := p.RegMR(mem[4*pageSize-1:], verbs.RemoteRead)
	require.NoError(t, err)
	require.Len(t, m1.Bytes(), 3*pageSize)
	require.ErrorIs(t, arena.Close(), verbs.ErrBusy)
	require.ErrorIs(t, p.Close(), verbs.ErrBusy)
	require.NoError(t, m1.Close())
	require.ErrorIs(t, arena.Close(), verbs.ErrBusy)
	require.NoError(t, m2.Close())
	require.ErrorIs(t, p.Close(), verbs.ErrBusy)
	require.NoError(t, arena.Close())
	require.NoError(t, arena.Close())
	require.Nil(t, arena.Bytes())

	// A mapping of the caller's own.
	own, err := mapMemory(pageSize)
	require.NoError(t, err)
	m3, err := p.RegMR(own, verbs.LocalWrite)
	require.NoError(t, err)
	require.ErrorIs(t, p.Close(), verbs.ErrBusy)
	require.NoError(t, m3.Close())
	require.NoError(t, unmapMemory(own))
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.NewArena(pageSize)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = p.RegMR(a.mem, verbs.LocalWrite)
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestMemoryAttributes(t *testing.T) {
	_, a, _ := pair(t, 1, simnet.Options{})
	for _, size := range []int{0, -pageSize, 1, pageSize + 1} {
		_, err := a.pd.NewArena(size)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, access := range []verbs.Access{1 << 15, verbs.RemoteWrite, verbs.RemoteAtomic} {
		_, err := a.pd.RegMR(a.mem, access)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err := a.pd.RegMR(a.mem[:0], verbs.LocalWrite)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = a.pd.CreateAH(&verbs.AHAttr{})
	require.ErrorIs(t, err, syscall.EINVAL)
}

// TestRegionsOfABusyConnectionCanBeClosed closes regions while the peer writes to them.
func TestRegionsOfABusyConnectionCanBeClosed(t *testing.T) {
	_, a, b := pair(t, 1, simnet.Options{})
	for range 50 {
		x, y := connected(a, b, link{})
		arena, err := b.pd.NewArena(16 * pageSize)
		require.NoError(t, err)
		m, err := b.pd.RegMR(arena.Bytes(), verbs.LocalWrite|verbs.RemoteWrite)
		require.NoError(t, err)
		for i := range 20 {
			x.send(verbs.SendWR{
				ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: a.sgl(0, 10_000), RemoteAddr: m.Addr(), RKey: m.RKey(),
			})
		}
		done := 0
		require.Eventually(t, func() bool { done += len(x.completions()); return done >= 5 }, 10*time.Second, time.Microsecond)
		require.NoError(t, m.Close())
		require.NoError(t, arena.Close()) // a write from here on would crash
		require.NoError(t, x.q.Close())
		require.NoError(t, y.q.Close())
	}
}
