package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/rdmanet"
)

func init() {
	roles["serve"] = serveRole
	roles["call"] = callRole
	roles["elsewhere"] = elsewhereRole
}

// serveRole listens at the address and on the Device list in its first two arguments, and tells what each connection is served by. The third says
// what Admit is: "none", "all", or a number, that of a user who is let in.
func serveRole() error {
	lc := &rdmanet.ListenConfig{Device: os.Args[2]}
	creds := make(chan *rdmanet.Cred, 1)
	if who := os.Args[3]; who != "none" {
		lc.Admit = func(r *rdmanet.Request) error {
			if uid, err := strconv.Atoi(who); err == nil && (r.Cred == nil || r.Cred.UID != uid) {
				return errors.New("another user")
			}
			creds <- r.Cred
			return nil
		}
	}
	l, err := lc.Listen(context.Background(), "rdma", os.Args[1])
	if err != nil {
		fmt.Println(err)
		untilStdinEnds()
		return nil
	}
	fmt.Println(l.Addr())
	go func() {
		untilStdinEnds()
		l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		var cred *rdmanet.Cred
		if lc.Admit != nil {
			cred = <-creds
		}
		fmt.Println(c.(*rdmanet.Conn).Stats().Provider, cred)
		c.Close()
	}
}

// callRole dials the addresses that it reads, with the Device list in its first argument, and tells what serves, or what went wrong.
func callRole() error {
	fmt.Println("ready", os.Getpid())
	for {
		var device, address string
		if _, err := fmt.Scanln(&device, &address); err != nil {
			return nil
		}
		if device == "any" {
			device = ""
		}
		c, err := (&rdmanet.Dialer{Device: device, Timeout: 10 * time.Second}).Dial("rdma", address)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(c.(*rdmanet.Conn).Stats().Provider)
		c.Close()
	}
}

// elsewhereRole dials the addresses in its arguments from a network of its own that has them, too, and tells which refuse.
func elsewhereRole() error {
	if err := testnet.Up(); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "addr", "add", "192.0.2.5/32", "dev", "lo").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	var all []string
	for _, a := range os.Args[1:] {
		c, err := rdmanet.DialTimeout("rdma", a, 10*time.Second)
		switch {
		case err == nil:
			all = append(all, c.(*rdmanet.Conn).Stats().Provider)
			c.Close()
		case errors.Is(err, syscall.ECONNREFUSED):
			all = append(all, "refused")
		default:
			all = append(all, err.Error())
		}
	}
	fmt.Println(strings.Join(all, " "))
	untilStdinEnds()
	return nil
}

// caller is a process of the role "call".
type caller struct {
	*userProcess
	pid int
}

func startCaller(t *testing.T, uid uint32) *caller {
	t.Helper()
	c := &caller{userProcess: startAs(t, uid, "call")}
	_, err := fmt.Sscanf(c.line(t), "ready %d", &c.pid)
	require.NoError(t, err)
	return c
}

// dial is what dialing came to.
func (c *caller) dial(t *testing.T, device, address string) string {
	t.Helper()
	_, err := fmt.Fprintln(c.in.(interface{ Write([]byte) (int, error) }), device, address)
	require.NoError(t, err)
	return c.line(t)
}

// TestChoiceOfUsers: processes of one user, and root's, share memory without more ado; those of others where both sides say so. Who is left out is
// told what to do.
func TestChoiceOfUsers(t *testing.T) {
	const nobody, daemon = 65534, 1
	if os.Geteuid() != 0 {
		cannot(t, "another user (run as root)")
	}
	if !chosen(t) {
		return
	}
	// UDP port 4791 is the server's user's: who gets nothing over shared memory cannot have softroce either.
	const busy = "UDP port 4791 is in use by uid "
	for _, c := range []struct {
		server uint32
		admit  string
		client uint32
		device string
		want   string // by what, or a part of the error
		cred   bool
	}{
		{0, "none", 0, "any", "shm", false},
		{nobody, "none", nobody, "any", "shm", false},
		{nobody, "all", nobody, "any", "shm", true},
		{0, "none", nobody, "any", busy + "0,", false},
		{0, "all", nobody, "any", "shm", true},
		{0, "65534", nobody, "any", "shm", true},
		{0, "1", nobody, "any", "connection refused: refused by the application", false},
		{nobody, "none", 0, "any", busy + "65534,", false},
		{nobody, "none", 0, "shm", "shm", false},
		{nobody, "none", daemon, "any", busy + "65534,", false},
		{nobody, "all", daemon, "any", busy + "65534,", false},
		{nobody, "all", daemon, "shm", "shm", true},
		{nobody, "none", daemon, "shm", "takes no other users", false},
	} {
		name := fmt.Sprintf("uid %d by %q to uid %d, which admits %s", c.client, c.device, c.server, c.admit)
		server := startAs(t, c.server, "serve", "127.0.0.1:0", "", c.admit)
		addr := server.line(t)
		client := startCaller(t, c.client)
		got := client.dial(t, c.device, addr)
		if c.want == "shm" {
			require.Equal(t, "shm", got, name)
			cred := "<nil>"
			if c.cred {
				cred = fmt.Sprintf("&{%d %d %d}", client.pid, c.client, c.client)
			}
			require.Equal(t, "shm "+cred, server.line(t), name)
		} else {
			require.Contains(t, got, c.want, name)
		}
		if strings.HasPrefix(c.want, busy) {
			t.Log(got)
			_, cause, _ := strings.Cut(got, addr+": ")
			assert.True(t, strings.HasPrefix(cause, busy), "what is in the way comes first: %s", got)
			assert.Contains(t, got, "run as uid ")
			assert.Contains(t, got, "ss -lunp")
			assert.Regexp(t, `\(shm: (port \d+ is held by a process of uid \d+, .*Admit|process \d+, which holds port \d+, .* takes no other users' processes)`, got, "and why not that way")
		}
		client.end(t)
		server.end(t)
	}
}

// TestChoiceOfSecondUser: where another user has UDP port 4791, what this host's processes alone can mean is served over shared memory; anything else
// would look as if it could be reached.
func TestChoiceOfSecondUser(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		cannot(t, "another user (run as root)")
	}
	if !chosen(t) {
		return
	}
	first := startAs(t, 0, "serve", "127.0.0.1:0", "softroce", "none")
	first.line(t)
	second := startAs(t, nobody, "serve", "127.0.0.1:0", "", "none")
	client := startCaller(t, nobody)
	require.Equal(t, "shm", client.dial(t, "any", second.line(t)))
	second.end(t)
	second = startAs(t, nobody, "serve", ":0", "", "none")
	text := second.line(t)
	t.Log(text)
	assert.Contains(t, text, "UDP port 4791 is in use by uid 0,")
	assert.Contains(t, text, `Device "shm" listens for processes of this host alone`)
	second.end(t)
	second = startAs(t, nobody, "serve", ":0", "shm", "none")
	addr := strings.Replace(second.line(t), "[::]", "127.0.0.1", 1)
	require.Equal(t, "shm", client.dial(t, "any", addr))
	second.end(t)
	client.end(t)
	first.end(t)
}

// TestChoiceOfSquattedName: a port that another user was first to take over shared memory is no trap, neither for who listens nor for who
// dials.
func TestChoiceOfSquattedName(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		cannot(t, "another user (run as root)")
	}
	if !chosen(t) {
		return
	}
	squatter := startAs(t, nobody, "serve", "127.0.0.1:0", "shm", "all")
	addr := squatter.line(t)
	var log lines
	l, err := (&rdmanet.ListenConfig{Logger: log.logger()}).Listen(t.Context(), "rdma", addr)
	require.NoError(t, err)
	defer l.Close()
	assert.Equal(t, 1, strings.Count(log.b.String(), "\n"), "one line: %s", &log.b)
	assert.Contains(t, log.b.String(), "without shared memory")
	assert.Contains(t, log.b.String(), "uid 65534")
	by, err := served(t, new(rdmanet.Dialer), l, addr)
	require.NoError(t, err)
	assert.Equal(t, "softroce", by)

	_, err = (&rdmanet.ListenConfig{Device: "shm"}).Listen(t.Context(), "rdma", addr)
	require.ErrorIs(t, err, syscall.EADDRINUSE, "who wants nothing else does not get it")
	assert.Contains(t, err.Error(), "uid 65534")
	// Port 0 is another one.
	l0 := listenOn(t, "", "rdma", "127.0.0.1:0")
	by, err = served(t, new(rdmanet.Dialer), l0, l0.Addr().String())
	require.NoError(t, err)
	assert.Equal(t, "shm", by)
	squatter.end(t)
}

// TestChoiceOfNetworks: another network namespace is another host, even if it has the same address.
func TestChoiceOfNetworks(t *testing.T) {
	if !chosen(t) {
		return
	}
	l := listenOn(t, "", "rdma", ":0")
	p := startWith(t, testnet.Attr(0, 0), "elsewhere", "192.0.2.5:"+port(t, l), "127.0.0.1:"+port(t, l))
	assert.Equal(t, "refused refused", p.ready)
	p.stop(t)
	assert.Zero(t, l.(*rdmanet.Listener).Stats())
	by, err := served(t, new(rdmanet.Dialer), l, net.JoinHostPort("192.0.2.5", port(t, l)))
	require.NoError(t, err)
	assert.Equal(t, "shm", by)
}
