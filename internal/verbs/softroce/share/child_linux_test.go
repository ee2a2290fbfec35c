package share

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

const (
	childEnv    = "SHARE_CHILD" // the UDP port
	squatterEnv = "SHARE_SQUATTER"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(childEnv) != "":
		childMain()
	case os.Getenv(squatterEnv) != "":
		squatterMain()
	default:
		goleak.VerifyTestMain(m)
	}
}

// childMain is a process that shares. It does what its standard input says and writes what happens.
func childMain() {
	port, _ := strconv.ParseUint(os.Getenv(childEnv), 10, 16)
	var p *Process
	p, err := Join(Config{Port: uint16(port), Received: func(pkt *netio.Packet) { fmt.Println("got", describe(pkt)) }})
	if err != nil {
		fmt.Println("err", err)
		return
	}
	fmt.Println("slot", p.Slot())
	var releases []func()
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		var ps, bindPort, slot int
		var addr string
		switch line := sc.Text(); {
		case scan(line, "bind %d %s %d", &ps, &addr, &bindPort):
			n, release, err := p.BindPort(verbs.PortSpace(ps), netip.MustParseAddr(addr), uint16(bindPort))
			if err != nil {
				fmt.Println("err", err)
				continue
			}
			releases = append(releases, release)
			fmt.Println("bound", n)
		case line == "release":
			for _, r := range releases {
				r()
			}
			releases = nil
			fmt.Println("released")
		case scan(line, "send %d", &slot):
			fmt.Println("sent", p.HandOver(Target{Slot: uint8(slot)}, testPacket(7)))
		case line == "stats":
			fmt.Printf("stats %+v\n", p.Stats())
		case line == "close":
			fmt.Println("closed", p.Close())
		}
	}
}

func scan(line, format string, args ...any) bool {
	n, err := fmt.Sscanf(line, format, args...)
	return err == nil && n == len(args)
}

func describe(p *netio.Packet) string {
	return fmt.Sprintf("%v %v %d %d %d %s", p.Local, p.Remote, p.TrafficClass, p.HopLimit, p.ID, hex.EncodeToString(p.Data))
}

func testPacket(n int) *netio.Packet {
	data := make([]byte, 12+4*(n%1000))
	for i := range data {
		data[i] = byte(i * n)
	}
	return &netio.Packet{
		Local:        netip.MustParseAddr("192.0.2.1"),
		Remote:       netip.MustParseAddrPort("192.0.2.77:50001"),
		TrafficClass: uint8(n),
		HopLimit:     64,
		ID:           uint16(n),
		Data:         data,
	}
}

// proc is such a process, or a squatter.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	slot  uint8
}

// needsRoot skips a test that cannot become another user. Where everything has to be tested it fails.
func needsRoot(t *testing.T) {
	t.Helper()
	const why = "needs root, to become another user"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

func start(t *testing.T, env string, uid uint32) *proc {
	t.Helper()
	c := &proc{t: t, cmd: exec.Command("/proc/self/exe"), lines: make(chan string, 10000)}
	c.cmd.Env = append(os.Environ(), env)
	c.cmd.Dir = "/"
	c.cmd.Stderr = os.Stderr
	if int(uid) != os.Geteuid() {
		c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	c.in = in
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.lines <- sc.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(func() { c.kill() })
	return c
}

// newChild starts a process that shares port.
func newChild(t *testing.T, port uint16) *proc {
	t.Helper()
	c := start(t, fmt.Sprintf("%s=%d", childEnv, port), uint32(os.Geteuid()))
	n, err := strconv.ParseUint(c.expect("slot "), 10, 8)
	require.NoError(t, err)
	c.slot = uint8(n)
	return c
}

// kill ends the process as kill -9 does.
func (c *proc) kill() {
	c.in.Close()
	_ = c.cmd.Process.Kill()
	for range c.lines { // until the output ends
	}
	_ = c.cmd.Wait()
}

// expect waits for a line that begins with prefix and returns the rest.
func (c *proc) expect(prefix string) string {
	c.t.Helper()
	select {
	case l := <-c.lines:
		rest, ok := strings.CutPrefix(l, prefix)
		require.True(c.t, ok, "%q, want %q", l, prefix)
		return rest
	case <-time.After(10 * time.Second):
		c.t.Fatalf("no %q", prefix)
	}
	return ""
}

func (c *proc) do(format string, args ...any) *proc {
	c.t.Helper()
	_, err := fmt.Fprintf(c.in, format+"\n", args...)
	require.NoError(c.t, err)
	return c
}

func (c *proc) signal(sig os.Signal) {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(sig))
}

// stop stops the process and waits until it is.
func (c *proc) stop() {
	c.t.Helper()
	c.signal(unix.SIGSTOP)
	require.Eventually(c.t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		_, after, ok := strings.Cut(string(b), ") ")
		return err == nil && ok && after[0] == 'T'
	}, 5*time.Second, time.Millisecond)
}

// squatterMain is a process of another user that takes names: each line of its input is one.
// "connect" connects to a name and sends a message.
func squatterMain() {
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		var verb, name string
		if !scan(sc.Text(), "%s %s", &verb, &name) {
			fmt.Println("what?")
			continue
		}
		fd, err := socket()
		if err == nil {
			switch verb {
			case "listen":
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
				if err == nil {
					err = unix.Listen(fd, 100)
				}
			case "send":
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
				if err == nil {
					var buf [maxLen]byte
					err = unix.Send(fd, buf[:encode(buf[:], testPacket(1))], unix.MSG_NOSIGNAL)
				}
			}
		}
		if err != nil && verb == "send" && (err == unix.EPIPE || err == unix.ECONNRESET) {
			err = nil // it was closed on us already
		}
		fmt.Println(verb, "done:", err)
	}
}
