package cm

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-rdma/rdma/internal/verbs"
)

// rdmaDevice is a device of the kernel's RDMA subsystem, as sysfs shows it.
type rdmaDevice struct {
	name    string
	netdevs []string
	rxe     bool // rdma_rxe, which holds UDP port 4791 of the host
}

func (m *Manager) path(elem ...string) string {
	root := m.Root
	if root == "" {
		root = "/"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func dirNames(path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// rdmaDevices lists InfiniBand and RoCE devices. iWARP devices speak TCP and
// leave UDP port 4791 alone.
func (m *Manager) rdmaDevices() []rdmaDevice {
	const class = "sys/class/infiniband"
	var devs []rdmaDevice
	for _, name := range dirNames(m.path(class)) {
		dir := m.path(class, name)
		if strings.HasPrefix(readLine(filepath.Join(dir, "node_type")), "4:") { // RNIC
			continue
		}
		d := rdmaDevice{name: name}
		add := func(netdev string) {
			if netdev != "" && !slices.Contains(d.netdevs, netdev) {
				d.netdevs = append(d.netdevs, netdev)
			}
		}
		for _, port := range dirNames(filepath.Join(dir, "ports")) {
			ndevs := filepath.Join(dir, "ports", port, "gid_attrs", "ndevs")
			for _, i := range dirNames(ndevs) {
				add(readLine(filepath.Join(ndevs, i))) // an unused entry cannot be read
			}
		}
		// IPoIB interfaces have no entry of their own in the GID table.
		for _, netdev := range dirNames(filepath.Join(dir, "device", "net")) {
			add(netdev)
		}
		// Only rdma_rxe names its network interface in this attribute.
		if parent := readLine(filepath.Join(dir, "parent")); parent != "" {
			d.rxe = true
			add(parent)
		}
		devs = append(devs, d)
	}
	return devs
}

// below lists netdev and what it is stacked on: a VLAN's or bond's packets
// pass the hardware of the interfaces under it.
func (m *Manager) below(netdev string) []string {
	names := []string{netdev}
	for i := 0; i < len(names); i++ {
		for _, e := range dirNames(m.path("sys/class/net", names[i])) {
			if lower, ok := strings.CutPrefix(e, "lower_"); ok && !slices.Contains(names, lower) {
				names = append(names, lower)
			}
		}
	}
	return names
}

// guard refuses to reach softroce unasked where something else owns UDP
// port 4791: the hardware of a RoCE or InfiniBand device, which would swallow the
// packets, or rdma_rxe, which holds the port. remote is invalid for a listener.
func (m *Manager) guard(p verbs.Provider, local, remote netip.Addr) error {
	if p.Name() != SoftRoCE {
		return nil
	}
	devs := m.rdmaDevices()
	if len(devs) == 0 {
		return nil
	}
	if remote.IsValid() {
		var err error
		if local, err = routeSource(local, remote); err != nil {
			return nil // no route: the provider says so
		}
	}
	return m.guardNetdev(devs, interfaceOf(local))
}

// guardNetdev is guard for traffic of the network interface netdev; empty: of every one.
func (m *Manager) guardNetdev(devs []rdmaDevice, netdev string) error {
	why := m.noRDMACore()
	for _, d := range devs {
		if d.rxe {
			return unaskedf("rdma_rxe (device %s) holds UDP port 4791; %s", d.name, why)
		}
	}
	if netdev == "" || isLoopback(netdev) {
		// Every address, or this host's own: whoever answers there must be
		// the one who answers for the device's network too.
		if i := slices.IndexFunc(devs, func(d rdmaDevice) bool { return len(d.netdevs) > 0 }); i >= 0 {
			d := devs[i]
			return unaskedf("this host has the RDMA device %s (%s); %s",
				d.name, strings.Join(d.netdevs, ", "), why)
		}
		return nil
	}
	for _, n := range m.below(netdev) {
		for _, d := range devs {
			if slices.Contains(d.netdevs, n) {
				return unaskedf("the hardware of %s (RDMA device %s) takes UDP port 4791; %s", n, d.name, why)
			}
		}
	}
	return nil
}

// noRDMACore tells why the device's own provider is not there.
func (m *Manager) noRDMACore() string {
	if m.provider(RDMACore) == nil {
		return "rdmacore, which would use the device, is not part of this build"
	}
	return "rdmacore should have served it"
}

func isLoopback(netdev string) bool {
	ifi, err := net.InterfaceByName(netdev)
	return err == nil && ifi.Flags&net.FlagLoopback != 0
}

// routeSource is the source address of what goes to remote, from local if that is specified.
func routeSource(local, remote netip.Addr) (netip.Addr, error) {
	var d net.Dialer
	if local.IsValid() && !local.IsUnspecified() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	// Connecting a UDP socket asks the routing table and sends nothing.
	c, err := d.Dial("udp", netip.AddrPortFrom(remote, 9).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), nil
}

// interfaceOf names the network interface that has the address. It is empty if
// no single one has it.
func interfaceOf(addr netip.Addr) string {
	if !addr.IsValid() || addr.IsUnspecified() {
		return ""
	}
	if addr.Is4() && addr.IsLoopback() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // has all of 127.0.0.0/8
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, ifi := range ifs {
		addrs, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			p, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(p.IP)
			if ip.Unmap() == addr.Unmap().WithZone("") && (addr.Zone() == "" || addr.Zone() == ifi.Name) {
				return ifi.Name
			}
		}
	}
	return ""
}
