package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-rdma/rdma/internal/cm"
)

// addresses looks for a network that the embedded device can be reached on.
func (d *doctor) addresses() {
	const name = "network"
	ifs, err := net.Interfaces()
	if err != nil {
		d.add(Check{Name: name, Device: cm.SoftRoCE, Status: Failed, Detail: err.Error(), Fix: "let the program make netlink sockets (seccomp, AppArmor)"})
		return
	}
	var on []string
	loopback := false
	for _, ifi := range ifs {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := interfaceAddrs(ifi.Name)
		if err != nil || len(addrs) == 0 {
			continue
		}
		if ifi.Flags&net.FlagLoopback != 0 {
			loopback = true
			continue
		}
		on = append(on, fmt.Sprintf("%s (%v, MTU %d)", ifi.Name, addrs[0], ifi.MTU))
	}
	switch {
	case len(on) > 0:
		d.ok(name, cm.SoftRoCE, "%s", strings.Join(on, ", "))
	case loopback:
		d.add(Check{Name: name, Device: cm.SoftRoCE, Status: Note, Detail: "only the loopback interface is up with an address: no other host is reached"})
	default:
		d.add(Check{
			Name: name, Device: cm.SoftRoCE, Status: Failed, Detail: "no interface is up and has an address, not even the loopback one",
			Fix: "ip link set lo up, and for other hosts ip addr add ADDRESS/PREFIX dev eth0 && ip link set eth0 up",
		})
	}
}

func (d *doctor) path(elem ...string) string {
	return filepath.Join(append([]string{"/" + d.Root}, elem...)...)
}

// nat looks for signs of a network whose addresses are rewritten on the way out, which RoCE's checksum does not survive.
func (d *doctor) nat() {
	const name = "NAT"
	container := containerSign(d.path(), os.Getenv)
	ifi, addr := defaultInterface()
	if container == "" || ifi == "" || !addr.IsPrivate() || !pairedOutside(ifi) {
		d.ok(name, cm.SoftRoCE, "no sign of it on this host; routers may do it")
		return
	}
	d.add(Check{
		Name: name, Device: cm.SoftRoCE, Status: Warning,
		Detail: fmt.Sprintf("this is a container (%s) with a network of its own (%s, %v): if that is behind NAT, as docker's bridge is, hosts outside are not reached, since RoCE's "+
			"checksum covers the addresses", container, ifi, addr),
		Fix: "docker run --network=host, hostNetwork in Kubernetes, or routed pod addresses; rdmanet doctor --peer HOST shows whether a peer is reached",
	})
}

// containerSign tells by what a container is known; empty if this is none.
func containerSign(root string, getenv func(string) string) string {
	for _, f := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := os.Stat(filepath.Join(root, f)); err == nil {
			return "/" + f
		}
	}
	if getenv("KUBERNETES_SERVICE_HOST") != "" {
		return "KUBERNETES_SERVICE_HOST"
	}
	if c := getenv("container"); c != "" {
		return "container=" + c
	}
	return ""
}

// defaultInterface is the interface that leads to the rest of the world, and the address that is used there.
func defaultInterface() (name string, addr netip.Addr) {
	// Connecting a UDP socket asks the routing table and sends nothing.
	c, err := net.Dial("udp4", "192.0.2.1:9") // TEST-NET-1, RFC 5737
	if err != nil {
		return "", addr
	}
	defer c.Close()
	addr = c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	ifs, err := net.Interfaces()
	if err != nil {
		return "", addr
	}
	for _, ifi := range ifs {
		if addrs, err := interfaceAddrs(ifi.Name); err == nil && slices.Contains(addrs, addr) {
			return ifi.Name, addr
		}
	}
	return "", addr
}
