package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/rping"
	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

// Limits of one transfer, in which all that is in order takes milliseconds.
const (
	transferLimit = 15 * time.Second
	transferSize  = 1 << 20
)

// transfers lets data go over each provider and device that has a chance.
func (d *doctor) transfers(ctx context.Context) {
	d.devices(ctx)
	if d.wants(cm.Shm, shmDevice) {
		bad := Failed
		if d.Devices == "" {
			bad = Warning // what is slower does instead
		}
		d.transfer(ctx, cm.Shm, netip.AddrFrom4([4]byte{127, 0, 0, 1}), bad)
	}
}

// devices lets data go over those that lead to other hosts.
func (d *doctor) devices(ctx context.Context) {
	if d.wants(cm.RDMACore, "") {
		for i := range d.candidates {
			dev := &d.candidates[i]
			for _, p := range dev.Ports {
				if a, ok := ownAddr(&p); ok {
					d.transfer(ctx, dev.Name, a, Failed)
					break
				}
			}
		}
	}
	if !d.wants(cm.SoftRoCE, softroceDevice) {
		return
	}
	if d.holdsPort && d.Devices == "" {
		d.skip("connection (CM)", cm.SoftRoCE, "rdma_rxe has its port")
		return
	}
	d.transfer(ctx, cm.SoftRoCE, hostAddr(), Failed)
}

// ownAddr is an address of a port that is one of this host's.
func ownAddr(p *verbs.PortInfo) (netip.Addr, bool) {
	addrs, err := interfaceAddrs(p.Interface)
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		for _, g := range p.GIDs {
			if a == g {
				if a.Is6() && a.IsLinkLocalUnicast() {
					a = a.WithZone(p.Interface)
				}
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// hostAddr is an address of this host that others can reach, or that of the loopback interface.
func hostAddr() netip.Addr {
	if _, a := defaultInterface(); a.IsValid() {
		return a
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// transfer connects to itself over a device, and moves data by all operations that streams and rping need.
func (d *doctor) transfer(ctx context.Context, device string, addr netip.Addr, bad Status) {
	const connection, data = "connection (CM)", "data"
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	near, far, took, err := connect(ctx, device, addr)
	if err != nil {
		d.fault(bad, connection, device, err, hintOf(err))
		d.skip(data, device, "there is no connection")
		return
	}
	d.ok(connection, device, "to %v and back in %v", addr, took.Round(10*time.Microsecond))
	start := time.Now()
	err = exchange(ctx, near, far)
	_, _ = near.Close(), far.Close()
	if err == nil {
		err = pingSelf(ctx, device, addr)
	}
	if err != nil {
		d.fault(bad, data, device, err, hintOf(err))
		return
	}
	d.ok(data, device, "%d bytes there and back, SEND, READ and WRITE: %v", transferSize, time.Since(start).Round(100*time.Microsecond))
	d.report.Works = append(d.report.Works, device)
}

// hintOf is what package rdmanet says is to be done about an error.
func hintOf(err error) string {
	var e *rdmanet.Error
	if errors.As(err, &e) && e.Hint != "" {
		return e.Hint
	}
	return "RDMANET_PCAP=/tmp/trace.pcapng rdmanet doctor writes down what happens (softroce only); docs/troubleshooting.md has more"
}

// connect makes a connection of this process to itself.
func connect(ctx context.Context, device string, addr netip.Addr) (near, far net.Conn, took time.Duration, err error) {
	l, err := (&rdmanet.ListenConfig{Device: device}).Listen(ctx, "rdma", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return nil, nil, 0, err
	}
	defer l.Close()
	type result struct {
		c   net.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		accepted <- result{c, err}
	}()
	start := time.Now()
	near, err = (&rdmanet.Dialer{Device: device}).DialContext(ctx, "rdma", l.Addr().String())
	took = time.Since(start)
	if err != nil {
		l.Close()
		if r := <-accepted; r.err == nil {
			r.c.Close()
		}
		return nil, nil, 0, err
	}
	r := <-accepted
	if r.err != nil {
		near.Close()
		return nil, nil, 0, r.err
	}
	return near, r.c, took, nil
}

// exchange sends data one way, and back, and compares.
func exchange(ctx context.Context, near, far net.Conn) error {
	limit, _ := ctx.Deadline()
	if err := errors.Join(near.SetDeadline(limit), far.SetDeadline(limit)); err != nil {
		return err
	}
	echoed := make(chan error, 1)
	go func() {
		_, err := io.CopyN(far, far, transferSize)
		echoed <- err
	}()
	out, in := make([]byte, transferSize), make([]byte, transferSize)
	for i := range out {
		out[i] = byte(i ^ i>>8 ^ i>>16)
	}
	written := make(chan error, 1)
	go func() {
		_, err := near.Write(out)
		written <- err
	}()
	_, err := io.ReadFull(near, in)
	if err != nil {
		_, _ = near.Close(), far.Close() // so that the others end
	}
	if err := errors.Join(err, <-written, <-echoed); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return fmt.Errorf("the data came back changed: a fault of the device, its driver or memory")
	}
	return nil
}

// pingSelf has this process ping itself.
func pingSelf(ctx context.Context, device string, addr netip.Addr) error {
	serving, stop := context.WithCancel(ctx)
	s, err := rping.Listen(ctx, device, netip.AddrPortFrom(addr, 0), false)
	if err != nil {
		stop()
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(serving) // until stop
	}()
	defer func() {
		stop()
		<-served
	}()
	c, err := rping.Connect(ctx, device, netip.Addr{}, s.Addr(), rping.MaxSize)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Ping(ctx)
	return err
}

// peer reaches the peer.
func (d *doctor) peer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	addrs, err := cm.LookupDial(ctx, nil, cm.AnyFamily, d.Peer)
	if err != nil {
		d.add(Check{Name: peerCheck, Status: Failed, Detail: err.Error(), Fix: "name it by its IP address, or see /etc/hosts and /etc/resolv.conf"})
		return
	}
	before := BadICRC()
	c, err := rping.Connect(ctx, d.Devices, netip.Addr{}, addrs[0], rping.DefaultSize)
	if err != nil {
		d.unreached(addrs[0], err, BadICRC()-before)
		return
	}
	defer c.Close()
	took, err := c.Ping(ctx)
	if err != nil {
		d.unreached(addrs[0], err, BadICRC()-before)
		return
	}
	device, _ := c.Device()
	d.ok(peerCheck, device, "%v answers, %v", addrs[0], took.Round(time.Microsecond))
}

// BadICRC counts packets that came with addresses or ports other than they were sent with, or damaged.
func BadICRC() uint64 { return cm.Default().Counters(cm.SoftRoCE, softroceDevice).BadICRC }

func (d *doctor) unreached(peer netip.AddrPort, err error, bad uint64) {
	c := Check{Name: peerCheck, Status: Failed, Detail: fmt.Sprintf("%v: %v", peer, err)}
	var rej *verbs.RejectError
	switch {
	case bad > 0:
		c.Detail += fmt.Sprintf("; %d packets came whose checksum (ICRC) does not fit their addresses and ports", bad)
		c.Fix = "something on the way rewrites packets (NAT): use the host's network in containers, and addresses that are routed"
	case errors.As(err, &rej):
		c.Fix = "the host is reached; run there: rdmanet ping --listen"
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		c.Fix = fmt.Sprintf("ping %v; then let UDP port 4791 in at both hosts' firewalls (from any source port), and no NAT between; run there: rdmanet ping --listen", peer.Addr())
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		c.Fix = fmt.Sprintf("ip route get %v", peer.Addr())
	default:
		c.Fix = hintOf(err)
	}
	d.add(c)
}
