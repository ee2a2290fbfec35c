package rpma_test

import (
	"errors"
	"math"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rpma"
)

func mmap(t testing.TB, n int) []byte {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

// TestRules: what makes no sense is found before anything is posted, and costs nothing: the connection works afterwards.
func TestRules(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	c, _ := pair(t, p, q, pairOptions{})
	all := rpma.Usage(0xff) &^ rpma.FlushPersistent
	own, src := alloc(t, p, 100, all), alloc(t, p, 100, rpma.WriteSrc)
	far := remote(t, alloc(t, q, 100, all))
	foreign := alloc(t, q, 100, all)
	only := func(u rpma.Usage) rpma.RemoteMR { return remote(t, alloc(t, q, 100, u)) }
	closed := alloc(t, p, 100, all)
	require.NoError(t, closed.Close())
	odd := make([]byte, 0, rpma.DescriptorSize)
	odd, _ = far.AppendBinary(odd)
	odd[0] += 4
	oddRegion, err := rpma.ParseRemoteMR(odd)
	require.NoError(t, err)

	for name, x := range map[string]struct {
		op   rpma.Op
		code rpma.Code
	}{
		"none of the functions' makings":     {rpma.Op{}, rpma.ErrInvalid},
		"local range before the region":      {rpma.Write(far.Slice(0, 1), own.Slice(-1, 1)), rpma.ErrInvalid},
		"local range beyond the region":      {rpma.Write(far.Slice(0, 2), own.Slice(99, 2)), rpma.ErrInvalid},
		"local range of negative length":     {rpma.Write(far.Slice(0, -1), own.Slice(0, -1)), rpma.ErrInvalid},
		"local range that wraps":             {rpma.Write(far.Slice(0, 100), own.Slice(math.MaxInt, 100)), rpma.ErrInvalid},
		"remote range beyond the region":     {rpma.Write(far.Slice(99, 2), own.Slice(0, 2)), rpma.ErrInvalid},
		"remote range that wraps":            {rpma.Write(far.Slice(math.MaxUint64, 2), own.Slice(0, 2)), rpma.ErrInvalid},
		"lengths that differ":                {rpma.Write(far.Slice(0, 2), own.Slice(0, 3)), rpma.ErrInvalid},
		"remote range of no region":          {rpma.Write(rpma.RemoteMR{}.Slice(0, 2), own.Slice(0, 2)), rpma.ErrInvalid},
		"read, source alone":                 {rpma.Read(rpma.Local{}, far.Slice(0, 0)), rpma.ErrInvalid},
		"read, target alone":                 {rpma.Read(own.Slice(0, 0), rpma.Remote{}), rpma.ErrInvalid},
		"write, source alone":                {rpma.Write(rpma.Remote{}, own.Slice(0, 0)), rpma.ErrInvalid},
		"write with immediate, target alone": {rpma.WriteImm(far.Slice(0, 0), rpma.Local{}, 1), rpma.ErrInvalid},
		"region of another peer":             {rpma.Send(foreign.Slice(0, 1)), rpma.ErrInvalid},
		"closed region":                      {rpma.Send(closed.Slice(0, 1)), rpma.ErrInvalid},
		"read into what is not for it":       {rpma.Read(src.Slice(0, 1), far.Slice(0, 1)), rpma.ErrInvalid},
		"read from what is not for it":       {rpma.Read(own.Slice(0, 1), only(rpma.WriteDst).Slice(0, 1)), rpma.ErrInvalid},
		"write to what is not for it":        {rpma.Write(only(rpma.ReadSrc).Slice(0, 1), own.Slice(0, 1)), rpma.ErrInvalid},
		"atomic write of 7 bytes":            {rpma.AtomicWrite(far.Slice(0, 7), [8]byte{}), rpma.ErrInvalid},
		"atomic write at offset 4":           {rpma.AtomicWrite(far.Slice(4, 8), [8]byte{}), rpma.ErrInvalid},
		"atomic write in a region at 4":      {rpma.AtomicWrite(oddRegion.Slice(8, 8), [8]byte{}), rpma.ErrInvalid},
		"atomic write nowhere":               {rpma.AtomicWrite(rpma.Remote{}, [8]byte{}), rpma.ErrInvalid},
		"atomic write to a source":           {rpma.AtomicWrite(only(rpma.ReadSrc).Slice(0, 8), [8]byte{}), rpma.ErrInvalid},
		"flush of nothing":                   {rpma.Flush(rpma.Remote{}, rpma.Visibility), rpma.ErrInvalid},
		"flush beyond the region":            {rpma.Flush(far.Slice(99, 2), rpma.Visibility), rpma.ErrInvalid},
		"flush of an unknown type":           {rpma.Flush(far.Slice(0, 2), 2), rpma.ErrInvalid},
		"flush of what is not for it":        {rpma.Flush(only(rpma.WriteDst).Slice(0, 2), rpma.Visibility), rpma.ErrNotSupported},
		"persistent flush of that":           {rpma.Flush(far.Slice(0, 2), rpma.Persistent), rpma.ErrNotSupported},
	} {
		for _, call := range []func() error{
			func() error { _, err := c.Post(x.op); return err },
			func() error { return c.Do(t.Context(), x.op) },
			func() error { // nor is what stands before it
				n, err := c.Post(rpma.Write(far.Slice(0, 1), own.Slice(0, 1)), x.op)
				require.Zero(t, n, name)
				return err
			},
		} {
			err := call()
			require.ErrorIs(t, err, x.code, name)
			var e *rpma.Error
			require.ErrorAs(t, err, &e, name)
		}
	}
	require.ErrorIs(t, c.PostRecv(own.Slice(0, 101), 0), rpma.ErrInvalid)
	require.ErrorIs(t, c.PostRecv(src.Slice(0, 1), 0), rpma.ErrInvalid)
	require.ErrorIs(t, c.PostRecv(foreign.Slice(0, 1), 0), rpma.ErrInvalid)
	wc := make([]rpma.Completion, 4)
	n, err := c.CQ().Poll(wc)
	require.NoError(t, err)
	require.Zero(t, n, "nothing was posted")
	require.NoError(t, c.Do(t.Context()), "nothing to do")
	require.NoError(t, c.Do(t.Context(), rpma.Write(far.Slice(0, 100), own.Slice(0, 100))))
	_, err = c.CQ().Poll(nil)
	require.ErrorIs(t, err, rpma.ErrInvalid)
}

// TestPersistentFlush needs the region's use and the peer's word.
func TestPersistentFlush(t *testing.T) {
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, _ := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		var persisted [][]byte
		region := func(u rpma.Usage) rpma.RemoteMR {
			m, err := q.RegisterPersistent(mmap(t, 4096), u|rpma.WriteDst, func(b []byte) error {
				persisted = append(persisted, b)
				return nil
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			return remote(t, m)
		}
		for _, x := range []struct {
			usage  rpma.Usage
			flush  rpma.FlushType
			direct bool
			ok     bool
		}{
			{rpma.FlushVisibility, rpma.Visibility, false, true},
			{rpma.FlushVisibility, rpma.Visibility, true, true},
			{rpma.FlushVisibility, rpma.Persistent, true, false},
			{rpma.FlushVisibility, rpma.Persistent, false, false},
			{rpma.FlushPersistent, rpma.Visibility, true, false},
			{rpma.FlushPersistent, rpma.Persistent, false, false},
			{rpma.FlushPersistent, rpma.Persistent, true, true},
			{rpma.FlushPersistent | rpma.FlushVisibility, rpma.Visibility, false, true},
			{rpma.FlushPersistent | rpma.FlushVisibility, rpma.Persistent, true, true},
			{rpma.ReadSrc, rpma.Persistent, true, false},
			{rpma.ReadSrc, rpma.Visibility, true, false},
		} {
			persisted = nil
			r := region(x.usage)
			c.ApplyPeerConfig(rpma.PeerConfig{DirectWriteToPMem: x.direct})
			err := c.Do(t.Context(), rpma.Flush(r.Slice(8, 16), x.flush))
			if !x.ok {
				require.ErrorIs(t, err, rpma.ErrNotSupported, "%+v", x)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				continue
			}
			require.NoError(t, err, "%+v", x)
			if native == rpma.NativeAlways && x.flush == rpma.Persistent {
				require.Len(t, persisted, 1)
				require.Len(t, persisted[0], 16)
			} else {
				require.Empty(t, persisted)
			}
		}
	})
}

// TestRegions: what can be registered, and what the descriptor says.
func TestRegions(t *testing.T) {
	p := newPeer(t)
	for u := range 256 {
		usage := rpma.Usage(u)
		m, err := p.Alloc(10, usage)
		if usage == 0 || usage&rpma.FlushPersistent != 0 {
			require.ErrorIs(t, err, rpma.ErrInvalid, "%v", usage)
			continue
		}
		require.NoError(t, err, "%v", usage)
		require.Equal(t, usage, remote(t, m).Usage())
		require.Equal(t, uint64(10), remote(t, m).Size())
		require.Equal(t, make([]byte, 10), m.Bytes())
		copy(m.Bytes(), "not zeroes") // which the next one does not see
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
		require.Nil(t, m.Bytes())
	}
	for _, n := range []int{-1, 0} {
		_, err := p.Alloc(n, rpma.ReadSrc)
		require.ErrorIs(t, err, rpma.ErrInvalid)
	}
	_, err := p.Register(nil, rpma.ReadSrc)
	require.ErrorIs(t, err, rpma.ErrInvalid)
	_, err = p.Register(mmap(t, 4096), 0)
	require.ErrorIs(t, err, rpma.ErrInvalid)
	for _, n := range []int{1 << 20, 1<<20 + 1, 5 << 20} {
		m, err := p.Alloc(n, rpma.ReadSrc)
		require.NoError(t, err)
		require.Len(t, m.Bytes(), n)
		require.NoError(t, m.Close())
	}
	b := mmap(t, 8192)
	m, err := p.Register(b[13:5000], rpma.ReadSrc)
	require.NoError(t, err, "anywhere in a page")
	require.Equal(t, 4987, m.Len())
	require.ErrorIs(t, m.Advise(0, 4988, rpma.AdvicePrefetch), rpma.ErrInvalid)
	require.ErrorIs(t, m.Advise(0, 1, 3), rpma.ErrInvalid)
	if err := m.Advise(0, 4987, rpma.AdvicePrefetch); err != nil {
		require.ErrorIs(t, err, rpma.ErrNotSupported)
	}
	require.NoError(t, m.Close())

	// A file of an ordinary file system is as good.
	f, err := os.Create(t.TempDir() + "/file")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(4096))
	fb, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	fm, err := p.Register(fb, rpma.WriteDst|rpma.FlushPersistent)
	require.NoError(t, err)
	require.NoError(t, fm.Close())
	require.NoError(t, unix.Munmap(fb))
}

// TestPeerClose refuses while something is open, and says what.
func TestPeerClose(t *testing.T) {
	p := newPeer(t)
	m, err := p.Alloc(1, rpma.ReadSrc)
	require.NoError(t, err)
	m2, err := p.Alloc(1, rpma.ReadSrc)
	require.NoError(t, err)
	ep, err := p.Listen(localAny)
	require.NoError(t, err)
	srq, err := p.NewSRQ(nil)
	require.NoError(t, err)
	err = p.Close()
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorIs(t, err, rpma.ErrProvider)
	require.ErrorContains(t, err, "still open: 1 endpoint, 1 shared receive queue, 2 memory regions")
	c, s := pair(t, p, p, pairOptions{})
	require.ErrorContains(t, p.Close(), "2 connections")
	for _, x := range []interface{ Close() error }{c, ep, m, srq, s, m2, p, p, c, ep, m, srq} {
		require.NoError(t, x.Close())
	}
	_, err = p.Alloc(1, rpma.ReadSrc)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = p.Listen(localAny)
	require.Error(t, err)
	_, err = p.NewSRQ(nil)
	require.Error(t, err)
	_, err = p.Dial(t.Context(), local+":1", nil)
	require.Error(t, err)

	_, err = rpma.NewPeer(nil)
	require.ErrorIs(t, err, rpma.ErrInvalid)
	_, err = rpma.NewPeer(&rpma.Device{Name: "x", Unusable: syscall.EPERM})
	require.ErrorIs(t, err, syscall.EPERM)
	_, err = rpma.NewPeer(&rpma.Device{Name: "x", Provider: "nosuch"})
	require.ErrorIs(t, err, rpma.ErrNotSupported)
	_, err = rpma.NewPeer(&rpma.Device{Name: "nosuch", Provider: "softroce"})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "nosuch")
}
