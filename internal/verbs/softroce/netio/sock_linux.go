package netio

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// bufferSize is asked for where the system allows it: the default holds three or four
	// packets of segmentation offload for all connections of a process together.
	bufferSize = 8 << 20

	defaultHops = 64
)

func familyOf(v6 bool) int {
	if v6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func wildcard(v6 bool) netip.Addr {
	if v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// option is one socket option. Those that are not needed may fail.
type option struct {
	level, name, value int
	needed             bool
}

func setOptions(fd int, opts []option) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil && o.needed {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

// setBuffer raises a buffer as far as the system lets us.
func setBuffer(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bufferSize) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, bufferSize)
	}
}

// newSocket returns a UDP socket with opts set.
func newSocket(v6 bool, opts []option) (int, error) {
	fd, err := unix.Socket(familyOf(v6), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if v6 {
		err = setOptions(fd, []option{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, true}})
	}
	if err == nil {
		err = setOptions(fd, opts)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

var rxOptions4 = []option{
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, true},
	{unix.IPPROTO_IP, unix.IP_PKTINFO, 1, true},
	{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, false},
	{unix.IPPROTO_IP, unix.IP_RECVTTL, 1, false},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, false}, // groups come to sockets of their own
}

var rxOptions6 = []option{
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, true},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, true},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, false},
	{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1, false},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0, false},
	// Others leave the UDP checksum out, as annex A17 allows.
	{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1, true},
}

// rxSocket opens a socket that receives on local:port. It never has SO_REUSEADDR, with
// which another user could take the traffic over.
func rxSocket(local netip.Addr, port uint16, gro bool) (int, error) {
	v6 := local.Is6()
	opts := rxOptions4
	if v6 {
		opts = rxOptions6
	}
	fd, err := newSocket(v6, opts)
	if err != nil {
		return -1, err
	}
	if gro {
		_ = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	if err := unix.Bind(fd, sockaddr(local, port, scopeOf(local))); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// With path MTU discovery and no peer address, the kernel sends packets with DF
// set and the IPv4 identification 0, which the ICRC is computed for.
var txOptions4 = []option{
	{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, true},
	{unix.IPPROTO_IP, unix.IP_TTL, defaultHops, true},
	{unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, defaultHops, false},
	{unix.SOL_SOCKET, unix.SO_RCVBUF, 0, false}, // nothing is received here
}

var txOptions6 = []option{
	{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, true},
	{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, defaultHops, true},
	{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, defaultHops, false},
	{unix.SOL_SOCKET, unix.SO_RCVBUF, 0, false},
}

// txSocket opens a socket to send from, on a port of the kernel's choice.
func txSocket(v6 bool) (fd int, port uint16, err error) {
	opts := txOptions4
	if v6 {
		opts = txOptions6
	}
	if fd, err = newSocket(v6, opts); err != nil {
		return -1, 0, err
	}
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	if err = unix.Bind(fd, sockaddr(wildcard(v6), 0, 0)); err != nil {
		_ = unix.Close(fd)
		return -1, 0, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, os.NewSyscallError("getsockname", err)
	}
	return fd, addrOf(sa).Port(), nil
}

// hasGSO tells whether the kernel cuts sends into segments (UDP_SEGMENT, Linux 4.18).
func hasGSO(fd int) bool {
	_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
	return err == nil
}

// absent tells whether a socket could not be had because the host lacks the address family.
func absent(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) ||
		errors.Is(err, unix.EPROTONOSUPPORT)
}

// portBusy finds out who has the port.
func portBusy(port uint16, v6 bool) *PortBusyError {
	e := &PortBusyError{Port: port, UID: -1}
	name := "/proc/net/udp"
	if v6 {
		name += "6"
	}
	if f, err := os.Open(name); err == nil {
		e.UID = holder(f, port)
		_ = f.Close()
	}
	if e.UID <= 0 && port == Port {
		_, err := os.Stat("/sys/module/rdma_rxe")
		e.Rxe = err == nil
	}
	return e
}
