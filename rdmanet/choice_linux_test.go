package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// chosen runs the calling test again in a network of its own, where nothing but the test's wishes says what serves, and tells whether this is
// there. The interface lo has the address 192.0.2.5 besides, as an interface with a cable might.
func chosen(t *testing.T) bool {
	t.Helper()
	if !inOwnNetwork(t, time.Minute) {
		return false
	}
	choose(t)
	ipLink(t, "addr add 192.0.2.5/32 dev lo")
	return true
}

// served dials, takes the connection from the listener, and returns what serves both ends, or the error.
func served(t *testing.T, d *rdmanet.Dialer, l net.Listener, address string) (string, error) {
	t.Helper()
	c, err := d.Dial("rdma", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	s := accept(t, l.(*rdmanet.Listener))
	defer s.Close()
	require.Equal(t, c.LocalAddr(), s.RemoteAddr())
	require.Equal(t, address, c.RemoteAddr().String())
	by := c.(*rdmanet.Conn).Stats().Provider
	require.Equal(t, by, s.Stats().Provider)
	_, err = c.Write([]byte("over " + by))
	require.NoError(t, err)
	b := make([]byte, 20)
	n, err := s.Read(b)
	require.NoError(t, err)
	require.Equal(t, "over "+by, string(b[:n]))
	return by, nil
}

func listenOn(t *testing.T, device, network, address string) net.Listener {
	t.Helper()
	l, err := (&rdmanet.ListenConfig{Device: device}).Listen(t.Context(), network, address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestChoice: both ends take the best that both have, whichever of them knows of shared memory, at addresses as with TCP.
func TestChoice(t *testing.T) {
	if !chosen(t) {
		return
	}
	const refused = "refused"
	addresses := []string{"127.0.0.1", "127.0.0.9", "::1", "192.0.2.5"}
	for _, c := range []struct {
		server, network, listen string
		dial                    map[string]string // by the dialer's list
		reached                 string            // of the addresses
	}{
		{"", "rdma", "", map[string]string{"": "shm", "softroce": "softroce", "shm": "shm", "softroce,shm": "softroce", "rdmacore,shm": "shm"}, "0123"},
		{"", "rdma4", "", map[string]string{"": "shm", "softroce": "softroce"}, "013"},
		{"", "rdma6", "", map[string]string{"": "shm", "softroce": "softroce"}, "2"},
		{"", "rdma", "127.0.0.1", map[string]string{"": "shm", "softroce": "softroce"}, "0"},
		{"", "rdma", "::1", map[string]string{"": "shm", "softroce": "softroce"}, "2"},
		{"", "rdma", "192.0.2.5", map[string]string{"": "shm", "softroce": "softroce"}, "3"},
		{"softroce", "rdma", "", map[string]string{"": "softroce", "shm": refused, "shm,softroce": "softroce"}, "0123"},
		{"softroce", "rdma", "127.0.0.1", map[string]string{"": "softroce"}, "0"},
		{"shm", "rdma", "", map[string]string{"": "shm", "softroce": refused, "shm,rdmacore": "shm"}, "0123"},
		{"shm", "rdma", "192.0.2.5", map[string]string{"": "shm"}, "3"},
		{"softroce,shm", "rdma", "", map[string]string{"": "shm"}, "0123"},
	} {
		l := listenOn(t, c.server, c.network, net.JoinHostPort(c.listen, "0"))
		for i, host := range addresses {
			at := net.JoinHostPort(host, port(t, l))
			for device, want := range c.dial {
				if !strings.ContainsRune(c.reached, rune('0'+i)) {
					want = refused
				}
				begin := time.Now()
				by, err := served(t, &rdmanet.Dialer{Device: device}, l, at)
				if err != nil {
					require.ErrorIs(t, err, syscall.ECONNREFUSED)
					by = refused
				}
				require.Equal(t, want, by, "listener on %q at %v, dial on %q to %s", c.server, l.Addr(), device, at)
				require.Less(t, time.Since(begin), 3*time.Second, "nothing is waited for")
			}
		}
		require.NoError(t, l.Close())
	}
}

// Two listeners at different addresses of one port are two, whatever each is on.
func TestChoiceOfListeners(t *testing.T) {
	if !chosen(t) {
		return
	}
	for _, on := range [][2]string{{"", ""}, {"shm", "softroce"}, {"softroce", "shm"}, {"", "softroce"}} {
		a := listenOn(t, on[0], "rdma", "127.0.0.1:0")
		b := listenOn(t, on[1], "rdma", net.JoinHostPort("192.0.2.5", port(t, a)))
		for i, l := range []net.Listener{a, b} {
			by, err := served(t, new(rdmanet.Dialer), l, l.Addr().String())
			require.NoError(t, err)
			want := on[i]
			if want == "" {
				want = "shm"
			}
			require.Equal(t, want, by)
		}
		_, err := rdmanet.Dial("rdma", "[::1]:"+port(t, a))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		if on[0] == "" {
			_, err = rdmanet.Listen("rdma", ":"+port(t, a))
			require.ErrorIs(t, err, syscall.EADDRINUSE)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	// In use on one is in use: the dialer could not tell them apart.
	for _, device := range []string{"shm", "softroce"} {
		l := listenOn(t, device, "rdma", "127.0.0.1:0")
		_, err := rdmanet.Listen("rdma", l.Addr().String())
		require.ErrorIs(t, err, syscall.EADDRINUSE, device)
		var e *rdmanet.Error
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Hint, "another port")
		require.NoError(t, l.Close())
		require.NoError(t, listenOn(t, "", "rdma", l.Addr().String()).Close(), "what had been taken was given back")
	}
}

// The address to connect from is bound to, on whatever serves.
func TestChoiceFromLocalAddr(t *testing.T) {
	if !chosen(t) {
		return
	}
	for _, server := range []string{"", "softroce"} {
		l := listenOn(t, server, "rdma4", ":0")
		free := unusedPort(t)
		for _, local := range []string{"127.0.0.1:0", "127.0.0.7:0", "192.0.2.5:0", free} {
			c, err := (&rdmanet.Dialer{LocalAddr: rdmanet.AddrFromAddrPort(netip.MustParseAddrPort(local))}).Dial("rdma", "192.0.2.5:"+port(t, l))
			require.NoError(t, err, local)
			got := c.LocalAddr().(*rdmanet.Addr)
			want := netip.MustParseAddrPort(local)
			assert.Equal(t, want.Addr(), got.IP)
			if want.Port() != 0 {
				assert.Equal(t, want.Port(), got.Port)
			}
			require.NoError(t, c.Close())
		}
		_, e := dialError(t, &rdmanet.Dialer{LocalAddr: &net.IPAddr{IP: net.IPv4(203, 0, 113, 77)}}, "rdma", "127.0.0.1:"+port(t, l))
		require.ErrorIs(t, e, syscall.EADDRNOTAVAIL)
		assert.Contains(t, e.Hint, "one of this host's")
	}
}

// That nobody listens reads the same wherever somebody might, and not as a list.
func TestChoiceRefused(t *testing.T) {
	if !chosen(t) {
		return
	}
	const what = "connection refused: nobody listens on the port (reason 8); start a server there with rdmanet.Listen or rsockets; TCP's ports are others than RDMA's"
	addr := unusedPort(t)
	for device, by := range map[string]string{"": "softroce0", "softroce": "softroce0", "shm": "shm", "shm,softroce": "softroce0", "shm0": "shm"} {
		begin := time.Now()
		op, e := dialError(t, &rdmanet.Dialer{Device: device}, "rdma", addr)
		require.ErrorIs(t, op, syscall.ECONNREFUSED)
		require.NotErrorIs(t, op, rdmanet.ErrNoDevice)
		assert.Equal(t, rdmanet.PhaseConnect, e.Phase)
		if by != "shm" {
			by += ": connecting to " + addr
		}
		assert.Equal(t, "dial rdma "+addr+": "+by+": "+what, op.Error())
		assert.Less(t, time.Since(begin), 3*time.Second)
	}
	op, e := dialError(t, &rdmanet.Dialer{Device: "shm,rdmacore"}, "rdma", addr)
	require.ErrorIs(t, op, syscall.ECONNREFUSED)
	assert.Equal(t, rdmanet.PhaseConnect, e.Phase)
	assert.Equal(t, "shm", e.Provider)
	assert.Contains(t, e.Error(), "nobody listens on the port (reason 8), and no device serves 127.0.0.1 (rdmacore: this host has no RDMA device")
	op, _ = dialError(t, &rdmanet.Dialer{Device: "shm,rdmacore"}, "rdma", "198.51.100.1:80")
	require.ErrorIs(t, op, rdmanet.ErrNoDevice)
	require.NotErrorIs(t, op, syscall.ECONNREFUSED, "nobody has been asked")
}

// A listener that closes at any moment of a dial has refused it, or its connection ends.
func TestChoiceListenerCloses(t *testing.T) {
	if !chosen(t) {
		return
	}
	refused, connected := 0, 0
	for i := range 300 {
		l := listenOn(t, "", "rdma", "127.0.0.1:0")
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Microsecond)
			assert.NoError(t, l.Close())
		})
		c, err := rdmanet.DialTimeout("rdma", l.Addr().String(), 10*time.Second)
		if err == nil {
			connected++
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, err = c.Read(make([]byte, 1))
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.Error(t, err)
			c.Close()
		} else {
			refused++
			require.True(t, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET), "%v", err)
		}
		wg.Wait()
	}
	t.Log(refused, "refused,", connected, "connected")
}

// Over shared memory a stopped process that listens is waited for as long as the dialer says, once.
func TestChoiceStoppedListener(t *testing.T) {
	if !chosen(t) {
		return
	}
	for _, linked := range []bool{false, true} {
		p := start(t, "echo")
		if linked {
			dial(t, nil, addrOf(t, p.ready))
		}
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		untilStopped(t, p.cmd.Process.Pid)
		begin := time.Now()
		_, e := dialError(t, &rdmanet.Dialer{Timeout: 500 * time.Millisecond}, "rdma", p.ready)
		took := time.Since(begin)
		require.ErrorIs(t, e, context.DeadlineExceeded)
		require.True(t, e.Timeout())
		assert.Equal(t, "shm", e.Provider)
		assert.Contains(t, e.Error(), "stopped")
		assert.Less(t, took, 3*time.Second)
		if long {
			begin = time.Now()
			_, e = dialError(t, new(rdmanet.Dialer), "rdma", p.ready)
			require.ErrorIs(t, e, syscall.ETIMEDOUT)
			assert.Less(t, time.Since(begin), 20*time.Second, "no other provider is waited for besides")
			assert.Contains(t, e.Error(), "stopped")
		}
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
		c := dial(t, &rdmanet.Dialer{Timeout: 10 * time.Second}, addrOf(t, p.ready))
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, readOne(c))
		require.NoError(t, c.Close())
		p.cmd.Process.Kill()
	}
}

// untilStopped waits until all threads of a process have heard of SIGSTOP.
func untilStopped(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		require.NoError(t, err)
		for _, name := range states {
			b, err := os.ReadFile(name)
			require.NoError(t, err)
			_, state, _ := strings.Cut(string(b), ") ") // proc(5)
			if !strings.HasPrefix(state, "T ") {
				return false
			}
		}
		return true
	}, 5*time.Second, time.Millisecond)
}

// An old program, which has softroce alone, and a new one find each other in either direction, also while the server is replaced by
// one of the other kind.
func TestChoiceRollingUpgrade(t *testing.T) {
	if !chosen(t) {
		return
	}
	startOn := func(device string, args ...string) *process {
		t.Setenv("RDMANET_DEVICE", device)
		defer t.Setenv("RDMANET_DEVICE", "")
		return start(t, "echo", args...)
	}
	addr := unusedPort(t)
	for _, server := range []string{"softroce", "", "softroce", ""} {
		p := startOn(server, addr)
		require.Equal(t, addr, p.ready)
		for device, want := range map[string]string{"": server, "softroce": "softroce"} {
			if want == "" {
				want = "shm"
			}
			c := dial(t, &rdmanet.Dialer{Device: device}, addrOf(t, addr))
			assert.Equal(t, want, c.Stats().Provider, "server %q, client %q", server, device)
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			require.NoError(t, readOne(c))
			require.NoError(t, c.Close())
		}
		p.stop(t)
	}
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Nothing is logged of what is as usual.
func TestChoiceIsQuiet(t *testing.T) {
	if !chosen(t) {
		return
	}
	var log lines
	old := slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(old)
	for _, at := range []string{"127.0.0.1:0", ":0"} {
		l := listenOn(t, "", "rdma4", at)
		_, err := served(t, new(rdmanet.Dialer), l, "127.0.0.1:"+port(t, l))
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	_, err := rdmanet.Dial("rdma", unusedPort(t))
	require.Error(t, err)
	assert.Empty(t, log.b.String())
}

// AllStats tells shared memory from the rest.
func TestChoiceIsCounted(t *testing.T) {
	if !chosen(t) {
		return
	}
	l := listenOn(t, "", "rdma", "127.0.0.1:0")
	_, err := served(t, new(rdmanet.Dialer), l, l.Addr().String())
	require.NoError(t, err)
	s := deviceStats("shm")
	assert.EqualValues(t, 1, s.Dials)
	assert.EqualValues(t, len("over shm"), s.BytesWritten)
	assert.EqualValues(t, len("over shm"), s.BytesRead)
	for _, d := range rdmanet.AllStats() {
		assert.Contains(t, []string{"shm", "softroce"}, d.Provider)
		assert.True(t, d.Provider != "softroce" || d.Dials == 0)
	}
}
