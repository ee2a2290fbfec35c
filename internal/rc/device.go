package rc

import (
	"fmt"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Device is an open device that connections share, with one protection domain
// and the memory of its arenas.
type Device struct {
	key deviceKey
	dev verbs.Device
	pd  verbs.PD
	mem allocator

	refs int // guarded by devices.mu
}

type deviceKey struct {
	provider verbs.Provider
	name     string
}

var devices struct {
	mu   sync.Mutex
	open map[deviceKey]*Device
}

// OpenDevice returns the device an identifier is bound to. Each is matched by one Release.
func OpenDevice(id verbs.CMID) (*Device, error) {
	key := deviceKey{id.Provider(), id.Device().Info().Name}
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d := devices.open[key]; d != nil {
		d.refs++
		return d, nil
	}
	dev, err := key.provider.Open(key.name)
	if err != nil {
		return nil, fmt.Errorf("rc: opening device %s: %w", key.name, err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		_ = dev.Close() // the first error says more
		return nil, fmt.Errorf("rc: protection domain on %s: %w", key.name, err)
	}
	d := &Device{key: key, dev: dev, pd: pd, refs: 1}
	d.mem.pd = pd
	if devices.open == nil {
		devices.open = make(map[deviceKey]*Device)
	}
	devices.open[key] = d
	return d, nil
}

// Release gives one OpenDevice back; with the last one the device is closed.
func (d *Device) Release() error {
	devices.mu.Lock()
	d.refs--
	last := d.refs == 0
	if last {
		delete(devices.open, d.key)
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
func (d *Device) Name() string     { return d.key.name }
func (d *Device) Provider() string { return d.key.provider.Name() }

// PD is the protection domain of all that is made of the device.
func (d *Device) PD() verbs.PD { return d.pd }

// Get returns a block of at least n bytes. With zero set it holds nothing of
// what another user had in it, as it must when a peer says what of it is data.
func (d *Device) Get(n int, zero bool) (Block, error) { return d.mem.get(n, zero) }

// Put gives a block back. No region of its own may be registered in it any more.
func (d *Device) Put(b Block) { d.mem.put(b) }

// Usage tells what is in use in this process: shared devices, their arenas, and
// bytes of blocks handed out.
func Usage() (open, arenas, bytes int) {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	for _, d := range devices.open {
		a, b := d.mem.inUse()
		open, arenas, bytes = open+1, arenas+a, bytes+b
	}
	return open, arenas, bytes
}
