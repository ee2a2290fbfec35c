package vm

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
)

// Peer is a network namespace of a guest, joined to the initial one by a veth. Soft-RoCE lives in the initial one only, so
// its packets are seen on the veth, and in the other one UDP port 4791 is free for a provider in user space.
type Peer struct {
	Netns     string // of the far end
	Near, Far Addrs  // the end in the initial namespace, which has the RDMA device, and the other
}

// Addrs is an interface and its addresses.
type Addrs struct {
	Interface string
	RDMA      string // the RDMA device on it, if there is one
	V4, V6    netip.Addr
}

// AddPeer makes a namespace with the given name, of at most 13 letters, and the RDMA device rxe<N> at the near end. MTU 1500 makes path
// MTU 1024, 4200 makes 4096. The first peer of a guest has 10.9.0.1 and fd09::1 near, 10.9.0.2 and fd09::2 far;
// the next one 10.9.1.1 and so on.
func (g *Guest) AddPeer(ctx context.Context, name string, mtu int) (*Peer, error) {
	n := int(g.peers.Add(1) - 1)
	if n > 255 {
		return nil, fmt.Errorf("vm: too many peers")
	}
	v6 := func(host byte) netip.Addr {
		a := netip.MustParseAddr("fd09::").As16()
		a[7], a[15] = byte(n), host
		return netip.AddrFrom16(a)
	}
	p := &Peer{
		Netns: name,
		Near:  Addrs{"v" + name, fmt.Sprintf("rxe%d", n), netip.AddrFrom4([4]byte{10, 9, byte(n), 1}), v6(1)},
		Far:   Addrs{"w" + name, "", netip.AddrFrom4([4]byte{10, 9, byte(n), 2}), v6(2)},
	}
	if err := g.ip(ctx, "", fmt.Sprintf(`netns add %[1]s
link add %[2]s mtu %[3]d type veth peer name %[4]s mtu %[3]d netns %[1]s
addr add %[5]s/24 dev %[2]s
addr add %[6]s/64 dev %[2]s nodad
link set %[2]s up
`, name, p.Near.Interface, mtu, p.Far.Interface, p.Near.V4, p.Near.V6)); err != nil {
		return nil, err
	}
	if err := g.ip(ctx, name, fmt.Sprintf(`link set lo up
addr add %[2]s/24 dev %[1]s
addr add %[3]s/64 dev %[1]s nodad
link set %[1]s up
`, p.Far.Interface, p.Far.V4, p.Far.V6)); err != nil {
		return nil, err
	}
	return p, g.AddRXE(ctx, p.Near.RDMA, p.Near.Interface)
}

// AddRXE makes a Soft-RoCE device on an interface that is up, and waits until its port is active.
func (g *Guest) AddRXE(ctx context.Context, device, iface string) error {
	if err := g.Command(ctx, "rdma", "link", "add", device, "type", "rxe", "netdev", iface).run(); err != nil {
		return err
	}
	return g.waitActive(ctx, device)
}

// waitActive waits until the port of an RDMA device is active.
func (g *Guest) waitActive(ctx context.Context, device string) error {
	_, err := g.Script(ctx, fmt.Sprintf(`
n=0
while read -r state </sys/class/infiniband/%[1]s/ports/1/state; do
	case $state in *ACTIVE*) exit 0;; esac
	[ $((n += 1)) -lt 600 ] || break
	sleep 0.05
done
echo 'the port of %[1]s stays down' >&2
rdma link >&2
ip addr >&2
exit 1
`, device))
	return err
}

// ip runs many commands of iproute2's ip in one process. Every process takes its time to start.
func (g *Guest) ip(ctx context.Context, netns, batch string) error {
	args := []string{"-batch", "-"}
	if netns != "" {
		args = append([]string{"-netns", netns}, args...)
	}
	c := g.Command(ctx, "ip", args...)
	c.Stdin = strings.NewReader(batch)
	return c.run()
}

// run is Run, with what the command wrote to standard error in the error.
func (c *Cmd) run() error {
	_, err := c.Output()
	return err
}

// WaitListen waits until a program listens on an RDMA port, as the kernel's rdma_cm knows it.
func (g *Guest) WaitListen(ctx context.Context, port int) error {
	_, err := g.Script(ctx, fmt.Sprintf(`
n=0
until rdma resource show cm_id | grep -Eq 'state LISTEN .* src-addr [^ ]*:%d '; do
	[ $((n += 1)) -lt 100 ] || { echo 'nobody listens on RDMA port %[1]d' >&2; exit 1; }
	sleep 0.1
done
`, port))
	return err
}
