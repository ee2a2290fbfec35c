//go:build guest

package guest

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

var (
	idleConns = flag.Int("idle", 300, "connections of TestIdle")
	echo      = flag.String("echo", "", "the program test/rdmacore/cmd/echo")
)

// process is another program, the other end of connections.
type process int

// threads is how many threads it has.
func (p process) threads(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p))
	require.NoError(t, err)
	return len(names)
}

// cpu is the processor time that it has used (proc(5): utime and stime, the 14th and 15th field).
func (p process) cpu(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
	require.NoError(t, err)
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	ticks := 0
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// rss is the memory that it has, in KiB: its own, and what it shares with the device's driver (proc(5), status).
func (p process) rss(t *testing.T) (own, shared int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
	require.NoError(t, err)
	for l := range strings.Lines(string(b)) {
		f := strings.Fields(l)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "RssAnon:":
			own = n
		case "RssFile:", "RssShmem:":
			shared += n
		}
	}
	return own, shared
}

// TestIdle keeps many connections to another process that do nothing: no threads, no time, little memory, at either end.
func TestIdle(t *testing.T) {
	server := exec.Command(*echo, "-device", "rdmacore", "-listen", netip.AddrPortFrom(netip.MustParseAddr(*addr), 0).String())
	in, err := server.StdinPipe()
	require.NoError(t, err)
	out, err := server.StdoutPipe()
	require.NoError(t, err)
	server.Stderr = os.Stderr
	require.NoError(t, server.Start())
	defer func() {
		assert.NoError(t, in.Close())
		assert.NoError(t, server.Wait())
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	at := strings.TrimSpace(strings.TrimPrefix(line, "listening at "))

	d := &rdmanet.Dialer{Device: "rdmacore", KeepAlive: -1}
	conns := make([]net.Conn, *idleConns)
	dial := func(conns []net.Conn) {
		var wg sync.WaitGroup
		var next atomic.Int64
		for range 8 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(conns)); i = next.Add(1) - 1 {
					c, err := d.Dial("rdma", at)
					if err != nil {
						t.Error(err)
						return
					}
					conns[i] = c
				}
			})
		}
		wg.Wait()
		require.False(t, t.Failed())
	}
	both := []process{process(os.Getpid()), process(server.Process.Pid)}
	first := len(conns) / 10
	dial(conns[:first])
	time.Sleep(time.Second)
	var few, own, shared [2]int
	for i, p := range both {
		few[i] = p.threads(t)
		own[i], shared[i] = p.rss(t)
	}
	begin := time.Now()
	dial(conns[first:])
	took := time.Since(begin)
	time.Sleep(2 * time.Second)
	var before [2]time.Duration
	for i, p := range both {
		before[i] = p.cpu(t)
	}
	time.Sleep(5 * time.Second)
	for i, p := range both {
		used, n := p.cpu(t)-before[i], p.threads(t)
		o, s := p.rss(t)
		more := float64(len(conns) - first)
		t.Logf("%s: %d connections; %d threads, %d with %d; %v of processor time in 5 s; %.1f KiB a connection, and %.1f of the driver's; dialed in %v",
			[]string{"client", "server"}[i], len(conns), n, few[i], first, used, float64(o-own[i])/more, float64(s-shared[i])/more, took)
		require.LessOrEqual(t, n, few[i]+8)
		require.LessOrEqual(t, used, 400*time.Millisecond)
	}
	// They are alive.
	for i := 0; i < len(conns); i += 50 {
		_, err := conns[i].Write([]byte("x"))
		require.NoError(t, err)
		_, err = conns[i].Read(make([]byte, 1))
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { _ = c.Close() })
	}
	wg.Wait()
}

// TestSignals sends signals to this process all the while data flows: what is interrupted is done again.
func TestSignals(t *testing.T) {
	a, b := streamPair(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			sig := syscall.SIGURG // the runtime's own, for preemption
			if n%2 == 0 {
				sig = syscall.SIGPROF
			}
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(200 * time.Microsecond)
		}
	})
	const total = 8 << 20
	wg.Go(func() {
		buf := make([]byte, 10000)
		for sent := 0; sent < total; {
			n, err := a.Write(buf[:min(len(buf), total-sent)])
			if err != nil {
				t.Error(err)
				return
			}
			sent += n
		}
	})
	got, err := io.Copy(io.Discard, io.LimitReader(b, total))
	require.NoError(t, err)
	require.EqualValues(t, total, got)
	for range 20 { // and connections come and go
		c, d := streamPair(t)
		require.NoError(t, c.Close())
		require.NoError(t, d.Close())
	}
	close(stop)
	wg.Wait()
}
