package rc

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Device is a device that connections share, with one protection domain and the
// memory of its arenas.
type Device struct {
	provider string
	maxQPWR  int
	iwarp    bool
	dev      verbs.Device
	pd       verbs.PD
	mem      allocator

	refs    int // guarded by devices.mu
	private bool

	mu    sync.Mutex
	stuck []stuckRegion // each counts as one of refs
}

// stuckRegion is memory that a peer may still be writing.
type stuckRegion struct {
	mr verbs.MR
	b  Block
}

// stuckRetry is how often such memory is tried again.
const stuckRetry = time.Second

// devices holds those in use by their value: under one name a provider may
// give several, for what they reach or one after another.
var devices struct {
	mu      sync.Mutex
	open    map[verbs.Device]*Device
	private map[*Device]struct{}
}

// OpenDevice returns the device an identifier is bound to. Each is matched by one Release.
func OpenDevice(id verbs.CMID) (*Device, error) {
	lent := id.Device()
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d := devices.open[lent]; d != nil {
		d.refs++
		return d, nil
	}
	dev, err := lent.Dup()
	if err != nil {
		return nil, fmt.Errorf("rc: opening device %s: %w", lent.Name(), err)
	}
	d, err := newDevice(dev, id.Provider().Name())
	if err != nil {
		return nil, err
	}
	if devices.open == nil {
		devices.open = make(map[verbs.Device]*Device)
	}
	devices.open[dev] = d
	return d, nil
}

// newDevice takes dev over, and closes it if it fails.
func newDevice(dev verbs.Device, provider string) (*Device, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		_ = dev.Close() // the first error says more
		return nil, fmt.Errorf("rc: protection domain on %s: %w", dev.Name(), err)
	}
	info := dev.Info()
	d := &Device{
		provider: provider, maxQPWR: info.MaxQPWR, iwarp: info.Transport == verbs.TransportIWARP,
		dev: dev, pd: pd, refs: 1,
	}
	d.mem.pd = pd
	return d, nil
}

// NewDevice gives an open device a protection domain that nobody else shares: what is registered in another one cannot be
// reached over its connections. It takes dev over, also if it fails.
func NewDevice(dev verbs.Device, provider string) (*Device, error) {
	d, err := newDevice(dev, provider)
	if err != nil {
		return nil, err
	}
	d.private = true
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if devices.private == nil {
		devices.private = make(map[*Device]struct{})
	}
	devices.private[d] = struct{}{}
	return d, nil
}

// Release gives one OpenDevice or NewDevice back; with the last one the device is closed.
func (d *Device) Release() error {
	devices.mu.Lock()
	d.refs--
	last := d.refs == 0
	switch {
	case last && d.private:
		delete(devices.private, d)
	case last:
		delete(devices.open, d.dev)
	}
	devices.mu.Unlock()
	if !last {
		return nil
	}
	err := d.mem.close()
	if e := d.pd.Close(); err == nil {
		err = e
	}
	if e := d.dev.Close(); err == nil {
		err = e
	}
	return err
}

// Name and Provider tell which device it is.
func (d *Device) Name() string     { return d.dev.Name() }
func (d *Device) Provider() string { return d.provider }

// Dev is the device itself, lent.
func (d *Device) Dev() verbs.Device { return d.dev }

// PD is the protection domain of all that is made of the device.
func (d *Device) PD() verbs.PD { return d.pd }

// Get returns a block of at least n bytes. With zero set it holds nothing of
// what another user had in it, as it must when a peer says what of it is data.
func (d *Device) Get(n int, zero bool) (Block, error) { return d.mem.get(n, zero) }

// Put gives a block back. No region of its own may be registered in it any more.
func (d *Device) Put(b Block) { d.mem.put(b) }

// PutRegistered closes a region and gives the block it lies in back: at once, or
// later if a peer may still be at it.
func (d *Device) PutRegistered(mr verbs.MR, b Block) error {
	err := mr.Close()
	switch {
	case err == nil:
		d.Put(b)
		return nil
	case !errors.Is(err, verbs.ErrBusy):
		return err // whoever may still write there: the block is lost
	}
	devices.mu.Lock()
	d.refs++
	devices.mu.Unlock()
	d.mu.Lock()
	d.stuck = append(d.stuck, stuckRegion{mr, b})
	if len(d.stuck) == 1 {
		time.AfterFunc(stuckRetry, d.retry)
	}
	d.mu.Unlock()
	return nil
}

// retry tries what is stuck again.
func (d *Device) retry() {
	d.mu.Lock()
	kept := d.stuck[:0]
	gone := 0
	for _, s := range d.stuck {
		switch err := s.mr.Close(); {
		case errors.Is(err, verbs.ErrBusy):
			kept = append(kept, s)
			continue
		case err == nil:
			d.Put(s.b)
		}
		gone++
	}
	clear(d.stuck[len(kept):])
	d.stuck = kept
	if len(kept) > 0 {
		time.AfterFunc(stuckRetry, d.retry)
	}
	d.mu.Unlock()
	for range gone {
		_ = d.Release() // nobody is left to tell
	}
}

// Usage tells what is in use in this process: devices, their arenas, and
// bytes of blocks handed out.
func Usage() (open, arenas, bytes int) {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	add := func(d *Device) {
		a, b := d.mem.inUse()
		open, arenas, bytes = open+1, arenas+a, bytes+b
	}
	for _, d := range devices.open {
		add(d)
	}
	for d := range devices.private {
		add(d)
	}
	return open, arenas, bytes
}
