//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// gids is what was last seen of the GID tables of a device. Address handles are made often, the tables
// change seldom, and the device tells when they do.
type gids struct {
	mu    sync.Mutex
	list  []gidEntry // nil: not known
	epoch int        // of changes
}

// forget is told that the tables have changed.
func (g *gids) forget() {
	g.mu.Lock()
	g.list, g.epoch = nil, g.epoch+1
	g.mu.Unlock()
}

// gidTable lists the tables, which must not be changed; again asks the device in any case.
func (d *device) gidTable(again bool) ([]gidEntry, error) {
	g := &d.gids
	g.mu.Lock()
	list, epoch := g.list, g.epoch
	g.mu.Unlock()
	if list != nil && !again {
		return list, nil
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	list, err := coreGIDs(d.ctx)
	if err != nil {
		return nil, d.failure("GID table", err)
	}
	list = slices.Clip(list)
	g.mu.Lock()
	if g.epoch == epoch {
		g.list = list
	}
	g.mu.Unlock()
	return list, nil
}

// ownGID finds the entry of the own address, of RoCE version 2 where there is one. An address with a zone is that interface's.
func (d *device) ownGID(a *verbs.AHAttr) (gidEntry, error) {
	ifindex := 0
	if zone := a.Local.Zone(); zone != "" {
		if ifi, err := net.InterfaceByName(zone); err == nil {
			ifindex = ifi.Index
		}
	}
	for _, again := range []bool{false, true} { // an address that is new may not have been told of yet
		list, err := d.gidTable(again)
		if err != nil {
			return gidEntry{}, err
		}
		if e, ok := findGID(list, a, ifindex); ok {
			return e, nil
		}
	}
	return gidEntry{}, fmt.Errorf("rdmacore: the GID table of %s does not have %v: %w", d.name, a.Local, syscall.EADDRNOTAVAIL)
}

func findGID(list []gidEntry, a *verbs.AHAttr, ifindex int) (e gidEntry, ok bool) {
	local := a.Local.Unmap().WithZone("")
	for _, g := range list {
		if g.gid != local || a.Port != 0 && g.port != a.Port || ifindex != 0 && g.ifindex != 0 && g.ifindex != ifindex {
			continue
		}
		if !ok || g.version > e.version {
			e, ok = g, true
		}
	}
	return e, ok
}
