package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
)

// kernel looks for devices.
func (d *doctor) kernel() {
	const name = "RDMA devices"
	in := d.core
	if in.None != nil {
		s := Note
		if d.asked() {
			s = Failed
		}
		c := Check{Name: name, Status: s, Detail: in.None.Error()}
		if s == Failed {
			c.Fix = "a device of hardware needs its driver (lspci -k shows it); on any interface that is up: " +
				"modprobe -a rdma_rxe rdma_ucm && rdma link add rxe0 type rxe netdev eth0"
		}
		d.add(c)
		return
	}
	d.ok(name, "", "%s", strings.Join(in.Kernel, ", "))
	for _, want := range strings.Split(d.Devices, ",") {
		want, _, _ = strings.Cut(strings.TrimSpace(want), "/")
		if want != "" && want != softroceDevice && want != shmDevice && !slices.Contains(cm.Known, want) && !slices.Contains(in.Kernel, want) {
			d.add(Check{
				Name: name, Device: want, Status: Failed, Detail: "the kernel has no device of that name",
				Fix: "name one of " + strings.Join(in.Kernel, ", "),
			})
		}
	}
	if len(in.Modules) > 0 {
		d.ok("kernel modules", "", "%s", strings.Join(in.Modules, ", "))
	}
}

// build looks at this program and what it loads.
func (d *doctor) build() {
	in := d.core
	// Without a device nobody needs the libraries, but it is good to know whether they would be there.
	bad := Failed
	if in.None != nil && !d.asked() {
		bad = Note
	}
	if in.Build != nil {
		d.fault(bad, "build", "", in.Build, "")
		return
	}
	d.ok("build", "", "with libibverbs and librdmacm")
	if in.Libraries != nil {
		d.fault(bad, "libraries", "", in.Libraries, "")
		return
	}
	d.ok("libraries", "", "%s", strings.Join(in.Loaded, ", "))
}

// nodes looks at /dev/infiniband.
func (d *doctor) nodes() {
	if d.core.None != nil {
		return
	}
	const name = "/dev/infiniband"
	for i := range d.core.Devices {
		dev := &d.core.Devices[i]
		if !d.wants(cm.RDMACore, dev.Name) {
			continue
		}
		if dev.Node != nil {
			d.fault(Failed, name, dev.Name, dev.Node, "")
			continue
		}
		d.ok(name, dev.Name, "can be opened")
		d.candidates = append(d.candidates, *dev)
	}
	if d.core.Manager != nil {
		d.fault(Failed, name, "rdma_cm", d.core.Manager, "")
		return
	}
	d.ok(name, "rdma_cm", "can be opened")
}

// drivers looks at what libibverbs makes of the devices.
func (d *doctor) drivers() {
	const name = "device opens"
	if d.core.Build != nil || d.core.Libraries != nil {
		for i := range d.candidates {
			d.skip(name, d.candidates[i].Name, "there is nothing to open it with")
		}
		d.candidates = nil
		return
	}
	d.candidates = slices.DeleteFunc(d.candidates, func(dev rdmacore.DeviceInspection) bool {
		if dev.Driver != nil {
			d.fault(Failed, name, dev.Name, dev.Driver, "")
			return true
		}
		d.ok(name, dev.Name, "%d queue pairs, %d completions in a queue, messages of %d bytes", dev.MaxQP, dev.MaxCQE, dev.MaxMsgSize)
		return false
	})
}

// Memory that is registered: connections share pieces of 2 MiB, and one that moves much has buffers of 1 MiB each way.
const (
	memlockLeast = 2 << 20
	memlockGood  = 64 << 20
)

func (d *doctor) memlock() {
	if d.core.None != nil {
		return
	}
	const name = "locked memory"
	m := d.core.Memlock
	switch free := m.Limit - min(m.Limit, m.Used); {
	case !m.Limited:
		d.ok(name, "", "no limit for this process")
	case free < memlockLeast:
		d.add(Check{Name: name, Status: Failed, Fix: m.Fix, Detail: fmt.Sprintf(
			"RLIMIT_MEMLOCK is %d bytes: a program with one connection needs %d (%d KiB of ulimit -l), 1,000 busy ones 2 GiB", m.Limit, memlockLeast, memlockLeast>>10)})
	case free < memlockGood:
		d.add(Check{Name: name, Status: Warning, Fix: m.Fix, Detail: fmt.Sprintf(
			"RLIMIT_MEMLOCK is %d bytes, enough for about %d busy connections of 2 MiB", m.Limit, free/memlockLeast)})
	default:
		d.ok(name, "", "RLIMIT_MEMLOCK is %d bytes, enough for about %d busy connections of 2 MiB", m.Limit, free/memlockLeast)
	}
}

// links looks at ports, their interfaces and addresses.
func (d *doctor) links() {
	d.candidates = slices.DeleteFunc(d.candidates, func(dev rdmacore.DeviceInspection) bool {
		usable := false
		for i := range dev.Ports {
			if d.link(&dev, &dev.Ports[i]) {
				usable = true
			}
		}
		if len(dev.Ports) == 0 {
			d.add(Check{Name: "link", Device: dev.Name, Status: Failed, Detail: "the device shows no port", Fix: "see dmesg for its driver's messages"})
		}
		return !usable
	})
}

func (d *doctor) link(dev *rdmacore.DeviceInspection, p *verbs.PortInfo) bool {
	name := fmt.Sprintf("%s/%d", dev.Name, p.Num)
	if p.State != "ACTIVE" {
		fix := "see whether the cable is in and the switch's port is on"
		if p.Interface != "" {
			fix = fmt.Sprintf("ip link set %s up; if it is up: is the cable in, and the switch's port on?", p.Interface)
		}
		d.add(Check{Name: "link", Device: name, Status: Failed, Detail: "the port is " + p.State, Fix: fix})
		return false
	}
	if p.Interface != "" {
		d.ok("link", name, "ACTIVE, interface %s, MTU %d", p.Interface, p.MTU)
	} else {
		d.ok("link", name, "ACTIVE, MTU %d", p.MTU)
	}
	return d.gids(name, p)
}

// gids compares a port's table of GIDs with the addresses of its interface, of which it is made.
func (d *doctor) gids(name string, p *verbs.PortInfo) bool {
	const check = "addresses (GIDs)"
	if p.Interface == "" {
		if len(p.GIDs) == 0 {
			d.add(Check{Name: check, Device: name, Status: Failed, Detail: "no interface of this network namespace belongs to the port", Fix: "run in the network namespace of the " +
				"interface: docker run --network=host, hostNetwork in Kubernetes; or bring an interface of the device in (SR-IOV, macvlan)"})
			return false
		}
		d.ok(check, name, "%d in the table", len(p.GIDs))
		return true
	}
	addrs, err := interfaceAddrs(p.Interface)
	if err != nil {
		d.add(Check{Name: check, Device: name, Status: Failed, Detail: fmt.Sprintf("interface %s, which belongs to the port, is not in this network namespace: %v", p.Interface, err), Fix: "run in the " +
			"network namespace of the interface: docker run --network=host, hostNetwork in Kubernetes"})
		return false
	}
	if len(addrs) == 0 {
		d.add(Check{
			Name: check, Device: name, Status: Failed, Detail: "interface " + p.Interface + " has no address",
			Fix: "ip addr add ADDRESS/PREFIX dev " + p.Interface,
		})
		return false
	}
	var have, lack []string
	for _, a := range addrs {
		if slices.Contains(p.GIDs, a) {
			have = append(have, a.String())
		} else {
			lack = append(lack, a.String())
		}
	}
	if len(have) == 0 {
		d.add(Check{
			Name: check, Device: name, Status: Failed, Detail: fmt.Sprintf("none of the addresses of interface %s (%s) is in the port's table %v", p.Interface, strings.Join(lack, ", "), p.GIDs),
			Fix: fmt.Sprintf("ip link set %s down && ip link set %s up, which makes the kernel fill the table anew", p.Interface, p.Interface),
		})
		return false
	}
	if len(lack) > 0 {
		d.add(Check{Name: check, Device: name, Status: Note, Detail: fmt.Sprintf("%s; not in the port's table, so not served: %s", strings.Join(have, ", "), strings.Join(lack, ", "))})
		return true
	}
	d.ok(check, name, "%s", strings.Join(have, ", "))
	return true
}

// interfaceAddrs are an interface's addresses, without zones.
func interfaceAddrs(name string) ([]netip.Addr, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, err
	}
	all, err := ifi.Addrs()
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range all {
		if p, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(p.IP); ok {
				addrs = append(addrs, ip.Unmap())
			}
		}
	}
	return addrs, nil
}
