package rdmanet_test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/rdmanet"
)

func init() { roles["tunnel"] = tunnelRole }

// openTunnel gives this host a tun(4) interface, as a VPN does, whose packets go through the socket other. The interface has one address,
// and the host none at all of the other family.
func openTunnel(other *os.File, prefix string) (closes func(), err error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq("tun0")
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, fmt.Errorf("TUNSETIFF: %w", err)
	}
	tun := os.NewFile(uintptr(fd), "tun")
	commands := []string{"-4 addr flush dev lo", "link set tun0 mtu 1400 up", "addr add " + prefix + " dev tun0 nodad"}
	if !strings.Contains(prefix, ":") {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		commands = []string{commands[1], "addr add " + prefix + " dev tun0"}
	}
	for _, args := range commands {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s (package iproute2): %w: %s", args, err, out)
		}
	}
	var carriers sync.WaitGroup
	carry := func(from, to *os.File) {
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			_, _ = to.Write(b[:n]) // or it is lost
		}
	}
	carriers.Go(func() { carry(tun, other) })
	carriers.Go(func() { carry(other, tun) })
	return func() {
		tun.Close()
		other.Close()
		carriers.Wait()
	}, nil
}

// tunnelRole is the other host: it echoes what comes by one connection.
func tunnelRole() error {
	if _, err := openTunnel(os.NewFile(3, "peer"), os.Args[1]); err != nil {
		return err
	}
	l, err := rdmanet.Listen("rdma", ":0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, err = io.Copy(c, c)
	return errors.Join(err, c.Close(), l.Close())
}

// TestTunnel connects two hosts that have one address family each, the same, over a tunnel: an interface without hardware addresses.
func TestTunnel(t *testing.T) {
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		cannot(t, "/dev/net/tun: %v", err)
	}
	for _, c := range []struct{ name, here, there, host string }{
		{"IPv4", "10.9.0.1/24", "10.9.0.2/24", "10.9.0.2"},
		{"IPv6", "fd09::1/64", "fd09::2/64", "fd09::2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !inOwnNetwork(t, time.Minute) {
				return
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			require.NoError(t, err)
			near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
			cmd := exec.Command("/proc/self/exe", c.there)
			cmd.Env = append(os.Environ(), roleEnv+"=tunnel")
			cmd.SysProcAttr = testnet.Attr(0, 0)
			cmd.ExtraFiles = []*os.File{far}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			require.NoError(t, far.Close())
			closes, err := openTunnel(near, c.here)
			require.NoError(t, err)
			defer closes()
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err, "the other host did not start")
			_, port, err := net.SplitHostPort(strings.TrimSpace(line))
			require.NoError(t, err)

			conn, err := rdmanet.DialTimeout("rdma", net.JoinHostPort(c.host, port), 20*time.Second)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
			data := make([]byte, 1<<20)
			_, _ = rand.Read(data)
			go func() { _, _ = conn.Write(data) }()
			got := make([]byte, len(data))
			_, err = io.ReadFull(conn, got)
			require.NoError(t, err)
			require.Equal(t, data, got)
			require.NoError(t, conn.Close())
			require.NoError(t, cmd.Wait())
		})
	}
}
