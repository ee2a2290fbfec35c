//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"net"
	"net/netip"
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
		e, ok := findGID(list, a, ifindex)
		if !ok {
			e, ok = d.portGID(list, a.Port)
		}
		if ok {
			return e, nil
		}
	}
	return gidEntry{}, fmt.Errorf("rdmacore: the GID table of %s does not have %v: %w", d.name, a.Local, syscall.EADDRNOTAVAIL)
}

// portGID is the GID of a port of InfiniBand: the table there knows nothing of the IP addresses that IPoIB has.
func (d *device) portGID(list []gidEntry, port int) (e gidEntry, ok bool) {
	if port == 0 && slices.ContainsFunc(d.port, func(p portAttrs) bool { return p.ethernet }) {
		return e, false // it may be of the other kind
	}
	i := slices.IndexFunc(list, func(g gidEntry) bool {
		return (port == 0 || g.port == port) && g.index == 0 && g.port <= len(d.port) && !d.port[g.port-1].ethernet
	})
	if i < 0 {
		return e, false
	}
	return list[i], true
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

// localAddr returns an address of the device, of the family of like if that is valid.
func (d *device) localAddr(port int, like netip.Addr) (netip.Addr, error) {
	var first netip.Addr
	for _, a := range d.addrs(port) {
		switch {
		case like.IsValid() && like.Is4() != a.Is4():
		case a.Is4() || a.IsGlobalUnicast():
			if !first.IsValid() || a.Is4() && !first.Is4() || first.IsLinkLocalUnicast() {
				first = a
			}
		case !first.IsValid():
			first = a
		}
	}
	if !first.IsValid() {
		return first, fmt.Errorf("the interface of device %s has no address that serves: %w", d.name, syscall.EADDRNOTAVAIL)
	}
	return first, nil
}

// addrs lists the addresses through which a device, or a port of it, can be reached: those of its table of GIDs on RoCE,
// and of the interfaces above it.
func (d *device) addrs(port int) (addrs []netip.Addr) {
	gids, err := d.gidTable(false)
	if err != nil {
		gids = nil // interfaces have addresses too
	}
	for _, g := range gids {
		if port != 0 && g.port != port || g.port > len(d.port) || !d.port[g.port-1].ethernet {
			continue
		}
		a := g.gid
		if a.Is6() && a.IsLinkLocalUnicast() {
			ifi, err := net.InterfaceByIndex(g.ifindex)
			if err != nil {
				continue
			}
			a = a.WithZone(ifi.Name)
		}
		addrs = append(addrs, a)
	}
	for _, name := range d.c.p.host.interfaces(d.name) {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			continue
		}
		as, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range as {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				if ip = ip.Unmap(); ip.Is6() && ip.IsLinkLocalUnicast() {
					ip = ip.WithZone(name)
				}
				addrs = append(addrs, ip)
			}
		}
	}
	return addrs
}
