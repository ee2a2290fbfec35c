package rdmanet_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func init() {
	roles["holder"] = holderRole
	roles["second"] = secondRole
}

// holderRole listens.
func holderRole() error {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	untilStdinEnds()
	return l.Close()
}

// secondRole tells what listening and dialing come to.
func secondRole() error {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	fmt.Println("listen", err)
	if err == nil {
		l.Close()
	}
	c, err := rdmanet.DialTimeout("rdma", os.Args[1], 5*time.Second)
	fmt.Println("dial", err)
	if err == nil {
		c.Close()
	}
	untilStdinEnds()
	return nil
}

// TestSecondUser: UDP port 4791 is one user's. Another one learns whose, before anything else.
func TestSecondUser(t *testing.T) {
	t.Parallel() // it mostly waits
	const nobody = 65534
	if os.Geteuid() != 0 {
		cannot(t, "another user (run as root)")
	}
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	for _, c := range []struct{ first, second uint32 }{{0, nobody}, {nobody, 0}, {nobody, 1}} {
		t.Run(fmt.Sprintf("%d before %d", c.first, c.second), func(t *testing.T) {
			first := startAs(t, c.first, "holder")
			addr := first.line(t)
			second := startAs(t, c.second, "second", addr)
			for _, op := range []string{"listen", "dial"} {
				text := second.line(t)
				t.Log(text)
				head := fmt.Sprintf("%s rdma 127.0.0.1:", op)
				require.True(t, strings.HasPrefix(text, op+" "+head), text)
				_, cause, _ := strings.Cut(strings.TrimPrefix(text, op+" "+head), ": ")
				assert.True(t, strings.HasPrefix(cause, fmt.Sprintf("UDP port 4791 is in use by uid %d,", c.first)), "the cause comes first: %s", text)
				assert.Contains(t, text, fmt.Sprintf("run as uid %d", c.first))
				assert.Contains(t, text, "network namespace")
				assert.Contains(t, text, "ss -lunp")
			}
			second.end(t)
			first.end(t)
			// Once it is gone the port is whose who comes.
			second = startAs(t, c.second, "second", addr)
			assert.Equal(t, "listen <nil>", second.line(t))
			assert.Contains(t, second.line(t), "connection refused")
			second.end(t)
		})
	}
}

// userProcess is a process of this program that another user runs.
type userProcess struct {
	cmd *exec.Cmd
	in  interface{ Close() error }
	out *bufio.Scanner
}

func startAs(t *testing.T, uid uint32, role string, args ...string) *userProcess {
	t.Helper()
	p := &userProcess{cmd: exec.Command("/proc/self/exe", args...)}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	p.cmd.Dir = "/"
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewScanner(out)
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// line is the next one that the process prints.
func (p *userProcess) line(t *testing.T) (l string) {
	t.Helper()
	within(t, 20*time.Second, "another user's process", func() {
		p.out.Scan()
		l = p.out.Text()
	})
	return l
}

func (p *userProcess) end(t *testing.T) {
	t.Helper()
	p.in.Close()
	within(t, 20*time.Second, "the end of a process", func() {
		for p.out.Scan() {
		}
		require.NoError(t, p.cmd.Wait())
	})
}
