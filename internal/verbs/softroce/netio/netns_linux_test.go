package netio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const childEnv = "NETIO_CHILD"

// child runs the calling test again in a process of its own and tells whether this is that process.
func child(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		if os.Getenv("CI") == "true" {
			t.Fatalf("this system does not let us have a network namespace: %v", err)
		}
		t.Skipf("this system does not let us have a network namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	return false
}

// host is a network namespace and a thread in it.
type host struct {
	t    *testing.T
	do   chan func()
	done chan struct{}
	ns   int
}

// newHost makes a namespace.
func newHost(t *testing.T) *host {
	h := &host{t: t, do: make(chan func()), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			h.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		started <- err
		for f := range h.do {
			func() {
				defer func() { h.done <- struct{}{} }()
				f()
			}()
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		close(h.do)
		unix.Close(h.ns)
	})
	return h
}

// run runs f in the namespace.
func (h *host) run(f func()) {
	h.do <- f
	<-h.done
	if h.t.Failed() { // in f, which ended only its own goroutine
		h.t.FailNow()
	}
}

func index(t testing.TB, name string) int {
	t.Helper()
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	return ifi.Index
}

// twoHosts makes two hosts on one wire of MTU 1500, where the sends of the first one are cut into segments
// before they leave.
func twoHosts(t *testing.T) (a, b *host) {
	a, b = newHost(t), newHost(t)
	a.run(func() {
		linkUp(t, 1)
		addVeth(t, "va", "vb", b.ns)
		linkUp(t, index(t, "va"), attr(unix.IFLA_GSO_MAX_SEGS, u32(1)))
		addAddr(t, index(t, "va"), netip.MustParsePrefix("10.9.0.1/24"))
		addAddr(t, index(t, "va"), netip.MustParsePrefix("fd09::1/64"))
		addAddr(t, index(t, "va"), netip.MustParsePrefix("fe80::a/64"))
	})
	b.run(func() {
		linkUp(t, 1)
		linkUp(t, index(t, "vb"))
		addAddr(t, index(t, "vb"), netip.MustParsePrefix("10.9.0.2/24"))
		addAddr(t, index(t, "vb"), netip.MustParsePrefix("fd09::2/64"))
		addAddr(t, index(t, "vb"), netip.MustParsePrefix("fe80::b/64"))
	})
	return a, b
}

// TestTwoHosts sends over a wire between two namespaces, on the real port.
func TestTwoHosts(t *testing.T) {
	if !child(t, testnet.Attr(0, 0)) {
		return
	}
	a, b := twoHosts(t)
	var vb string
	b.run(func() { vb = strconv.Itoa(index(t, "vb")) })
	p := &pair{sa: newSink(), sb: newSink()}
	a.run(func() { p.a = listen(t, Config{Handler: p.sa}) })
	b.run(func() { p.b = listen(t, Config{Handler: p.sb}) })
	for _, c := range []struct{ local, remote, seenLocal, seenRemote string }{
		{"10.9.0.1", "10.9.0.2", "10.9.0.2", "10.9.0.1"},
		{"fd09::1", "fd09::2", "fd09::2", "fd09::1"},
		// What reads the sockets runs outside of the namespace and does not know its names.
		{"fe80::a%va", "fe80::b%va", "fe80::b%" + vb, "fe80::a%" + vb},
	} {
		var path *Path
		a.run(func() {
			r, err := p.a.Route(netip.Addr{}, addr(c.remote))
			require.NoError(t, err)
			require.Equal(t, "va", r.Interface)
			require.Equal(t, 1500, r.MTU)
			require.Equal(t, addr(c.remote), r.Remote)
			if addr(c.local).Zone() == "" {
				require.Equal(t, addr(c.local), r.Local)
			}
			path = &Path{Local: addr(c.local), Remote: r.Remote}
			send(t, p.a, path, 64)
			send(t, p.a, path, 3)
		})
		for i, pk := range p.sb.take(t, 67) {
			check(t, &pk, uint32(i%64), pattern(1024))
			require.Equal(t, addr(c.seenLocal), pk.Local)
			require.Equal(t, addr(c.seenRemote), pk.Remote.Addr())
		}
		// And back along what the packets say.
		b.run(func() { send(t, p.b, &Path{Local: addr(c.seenLocal), Remote: addr(c.seenRemote)}, 30) })
		for i, pk := range p.sa.take(t, 30) {
			check(t, &pk, uint32(i), pattern(1024))
		}
		a.run(func() {
			tb := NewTxBatch()
			for i := range 3 {
				put(tb, path, uint32(i), pattern(1500))
			}
			require.ErrorIs(t, p.a.Send(tb), syscall.EMSGSIZE)
			require.ErrorIs(t, path.Err(), syscall.EMSGSIZE)
			send(t, p.a, path, 5)
			require.NoError(t, path.Err())
		})
		p.sb.take(t, 5)
	}
	a.run(func() {
		_, err := p.a.Route(netip.Addr{}, addr("198.51.100.1"))
		require.Equal(t, error(syscall.ENETUNREACH), err)
		_, err = p.a.Route(netip.Addr{}, addr("2001:db8::1"))
		require.Equal(t, error(syscall.ENETUNREACH), err)
		tb := NewTxBatch()
		path := &Path{Local: addr("10.9.0.1"), Remote: addr("198.51.100.1")}
		put(tb, path, 1, nil)
		require.Equal(t, error(syscall.ENETUNREACH), p.a.Send(tb))
		require.Equal(t, error(syscall.ENETUNREACH), path.Err())
	})
	require.Zero(t, p.a.Stats())
	require.Zero(t, p.b.Stats())
}

func send(t *testing.T, u *UDP, path *Path, n int) {
	t.Helper()
	tb := NewTxBatch()
	for i := range n {
		put(tb, path, uint32(i), pattern(1024))
	}
	require.NoError(t, u.Send(tb))
}

// TestIdentification reads the headers that arrive: what the kernel sent must be what the ICRC was
// computed for, for lone packets and for the segments of a larger send.
func TestIdentification(t *testing.T) {
	if !child(t, testnet.Attr(0, 0)) {
		return
	}
	a, b := twoHosts(t)
	var raw *net.IPConn
	b.run(func() {
		c, err := net.ListenIP("ip4:17", nil)
		require.NoError(t, err)
		raw = c
	})
	defer raw.Close()
	require.NoError(t, raw.SetReadDeadline(time.Now().Add(10*time.Second)))
	require.NoError(t, raw.SetReadBuffer(1<<20))
	rc, err := raw.SyscallConn()
	require.NoError(t, err)
	read := func() (h []byte) {
		buf := make([]byte, 1<<16)
		var n int
		require.NoError(t, rc.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN)
		}))
		require.NoError(t, err)
		return buf[:n]
	}
	path := &Path{Local: addr("10.9.0.1"), Remote: addr("10.9.0.2")}
	for _, gso := range []bool{true, false} {
		a.run(func() {
			u := listen(t, Config{Handler: newSink(), NoGSO: !gso})
			defer u.Close()
			require.Equal(t, gso, u.gso)
			send(t, u, path, 50)
		})
		for i := range 50 {
			h := read()
			require.Len(t, h, 20+8+12+1024+4)
			id := uint16(h[4])<<8 | uint16(h[5])
			want := 0
			if gso {
				want = i % (gsoBytes / (12 + 1024 + 4))
			}
			require.EqualValues(t, want, id)
			require.Equal(t, byte(0x40), h[6], "DF, no offset")
			src := uint16(h[20])<<8 | uint16(h[21])
			got, ok := wire.Verify(path.Local, path.Remote, src, h[28:], id)
			require.True(t, ok)
			require.Equal(t, id, got)
		}
	}
}

// TestOneFamily is a host without IPv6, and one without IPv4.
func TestOneFamily(t *testing.T) {
	if runtime.GOARCH == "386" {
		t.Skip("sockets are made by socketcall(2), whose arguments a filter does not see")
	}
	if !child(t, &syscall.SysProcAttr{}) {
		return
	}
	for _, lacking := range []int{unix.AF_INET6, unix.AF_INET} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the filter is the thread's; it ends with the goroutine
			if err := denySocket(lacking); err != nil {
				t.Errorf("seccomp: %v", err)
				return
			}
			s := newSink()
			port := uint16(40000 + os.Getpid()%20000)
			u, err := Listen(Config{Port: port, Handler: s})
			if err != nil {
				t.Error(err)
				return
			}
			defer u.Close()
			there, gone := addr("127.0.0.1"), addr("::1")
			if lacking == unix.AF_INET {
				there, gone = gone, there
			}
			b := NewTxBatch()
			put(b, &Path{Local: gone, Remote: gone}, 1, nil)
			if err := u.Send(b); !errors.Is(err, syscall.ENETUNREACH) {
				t.Errorf("to a family that is not there: %v", err)
			}
			if _, err := u.Route(netip.Addr{}, gone); !errors.Is(err, syscall.ENETUNREACH) {
				t.Errorf("route to a family that is not there: %v", err)
			}
			if _, err := u.Route(netip.Addr{}, there); err != nil {
				t.Error(err)
			}
			put(b, &Path{Local: there, Remote: there}, 1, nil)
			if err := u.Send(b); err != nil {
				t.Error(err)
			}
			select {
			case <-s.more:
			case <-time.After(5 * time.Second):
				t.Error("nothing came")
			}
		}()
		<-done
	}
}

// TestPortBusy meets a holder of the port that does not share it, and as another user one that does.
func TestPortBusy(t *testing.T) {
	if p := os.Getenv(childEnv); p != "" {
		port, err := strconv.ParseUint(p, 10, 16)
		require.NoError(t, err)
		busy(t, uint16(port), 0, "run as uid 0")
		return
	}
	for _, network := range []string{"udp4", "udp6"} {
		port := freePort(t)
		c, err := net.ListenUDP(network, &net.UDPAddr{Port: int(port)})
		require.NoError(t, err)
		busy(t, port, os.Geteuid(), "another program of this user")
		require.NoError(t, c.Close())
	}
	if os.Geteuid() != 0 {
		t.Skip("the rest needs root, to become another user")
	}
	port := freePort(t)
	listen(t, Config{Port: port, Handler: newSink()})
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestPortBusy$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+strconv.Itoa(int(port)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// busy listens and must meet uid.
func busy(t *testing.T, port uint16, uid int, hint string) {
	t.Helper()
	before := fds(t)
	_, err := Listen(Config{Port: port, Handler: newSink()})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	var busy *PortBusyError
	require.ErrorAs(t, err, &busy)
	require.Equal(t, PortBusyError{Port: port, UID: uid}, *busy)
	require.Contains(t, err.Error(), hint)
	require.Equal(t, before, fds(t))
}
