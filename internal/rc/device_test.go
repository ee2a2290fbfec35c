package rc

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// memDevice is a device as far as sharing needs one, memID an identifier bound to it.
type memDevice struct {
	verbs.Device
	pd    heapPD
	pds   int
	opens int
	fail  error
}

func (d *memDevice) Name() string               { return "mem0" }
func (d *memDevice) Info() *verbs.DeviceInfo    { return &verbs.DeviceInfo{Name: "mem0"} }
func (d *memDevice) Dup() (verbs.Device, error) { d.opens++; return d, nil }
func (d *memDevice) Close() error               { d.opens--; return nil }

func (d *memDevice) AllocPD() (verbs.PD, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.pds++
	return &closingPD{&d.pd, d}, nil
}

type closingPD struct {
	*heapPD
	d *memDevice
}

func (p *closingPD) Close() error { p.d.pds--; return nil }

type memProvider struct{ verbs.Provider }

func (memProvider) Name() string { return "mem" }

type memID struct {
	verbs.CMID
	d *memDevice
}

func (id memID) Device() verbs.Device     { return id.d }
func (id memID) Provider() verbs.Provider { return memProvider{} }

// TestDevicesAreShared by value, not by name, and closed with the last connection.
func TestDevicesAreShared(t *testing.T) {
	a, b := &memDevice{}, &memDevice{}
	d1, err := OpenDevice(memID{d: a})
	require.NoError(t, err)
	d2, err := OpenDevice(memID{d: a})
	require.NoError(t, err)
	d3, err := OpenDevice(memID{d: b})
	require.NoError(t, err)
	require.Same(t, d1, d2)
	require.NotSame(t, d1, d3)
	require.Equal(t, "mem0", d1.Name())
	require.Equal(t, "mem", d1.Provider())
	blk, err := d2.Get(5000, true)
	require.NoError(t, err)
	open, arenas, bytes := Usage()
	require.Equal(t, []int{2, 1, 8192}, []int{open, arenas, bytes})
	require.NoError(t, d1.Release())
	d2.Put(blk)
	require.NoError(t, d2.Release())
	require.NoError(t, d3.Release())
	require.Equal(t, []int{0, 0, 0, 0}, []int{a.opens, b.opens, a.pds, b.pds})
	require.Zero(t, a.pd.arenas+a.pd.mrs)
	a.fail = errors.New("no domain")
	_, err = OpenDevice(memID{d: a})
	require.ErrorIs(t, err, a.fail)
	require.Zero(t, a.opens)
}

// busyMR is a region that a peer is still at.
type busyMR struct {
	verbs.MR
	busy  atomic.Int32 // times that Close fails
	err   error
	calls atomic.Int32
}

func (m *busyMR) Close() error {
	m.calls.Add(1)
	if m.busy.Add(-1) >= 0 {
		return verbs.ErrBusy
	}
	return m.err
}

// TestStuckRegions: memory that a peer may still write is not used again, and
// keeps the device, until its region closes.
func TestStuckRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := &memDevice{}
		d, err := OpenDevice(memID{d: dev})
		require.NoError(t, err)
		b1, err := d.Get(MinBlock, true)
		require.NoError(t, err)
		b2, err := d.Get(MinBlock, true)
		require.NoError(t, err)
		mr := &busyMR{}
		mr.busy.Store(3)
		require.NoError(t, d.PutRegistered(mr, b1))
		mr2 := &busyMR{}
		mr2.busy.Store(5)
		require.NoError(t, d.PutRegistered(mr2, b2))
		_, _, bytes := Usage()
		require.Equal(t, 2*MinBlock, bytes)
		require.NoError(t, d.Release())
		require.Equal(t, 1, dev.opens)
		time.Sleep(stuckRetry*3 + stuckRetry/2)
		_, _, bytes = Usage()
		require.Equal(t, MinBlock, bytes, "the first is free")
		time.Sleep(stuckRetry * 3)
		synctest.Wait()
		require.EqualValues(t, 4, mr.calls.Load())
		require.EqualValues(t, 6, mr2.calls.Load())
		require.Zero(t, dev.opens)
		require.Zero(t, dev.pd.arenas)
		open, _, _ := Usage()
		require.Zero(t, open)
	})
}

// TestLostRegion: memory of a region that does not close is lost, and its owner told.
func TestLostRegion(t *testing.T) {
	dev := &memDevice{}
	d, err := OpenDevice(memID{d: dev})
	require.NoError(t, err)
	b, err := d.Get(MinBlock, false)
	require.NoError(t, err)
	bad := errors.New("broken")
	require.ErrorIs(t, d.PutRegistered(&busyMR{err: bad}, b), bad)
	require.ErrorIs(t, d.Release(), verbs.ErrBusy)
	require.Zero(t, dev.opens)
}
