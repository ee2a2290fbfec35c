//go:build guest

package guest

import (
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

var idleConns = flag.Int("idle", 300, "connections of TestIdle")

// threads is how many threads this process has.
func threads(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(names)
}

// cpu is the processor time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestIdle keeps many connections that do nothing: no threads, no time.
func TestIdle(t *testing.T) {
	l, err := (&rdmanet.ListenConfig{Device: "rdmacore", KeepAlive: -1}).Listen(t.Context(), "rdma", netip.AddrPortFrom(netip.MustParseAddr(*addr), 0).String())
	require.NoError(t, err)
	defer l.Close()
	var accepted []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range *idleConns {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			accepted = append(accepted, c)
		}
	}()
	var conns []net.Conn
	d := &rdmanet.Dialer{Device: "rdmacore", KeepAlive: -1}
	begin := time.Now()
	for range *idleConns {
		c, err := d.Dial("rdma", l.Addr().String())
		require.NoError(t, err)
		conns = append(conns, c)
	}
	<-done
	took := time.Since(begin)
	time.Sleep(time.Second)
	n, before := threads(t), cpu(t)
	time.Sleep(5 * time.Second)
	used := cpu(t) - before
	t.Logf("%d connections in %v, %d threads, %v of processor time in 5 s, %s", 2*len(conns), took, n, used, rss(t))
	require.Less(t, n, 40)
	require.Less(t, used, 500*time.Millisecond)
	require.LessOrEqual(t, threads(t), n)
	// They are alive.
	for i := 0; i < len(conns); i += 50 {
		_, err := conns[i].Write([]byte("x"))
		require.NoError(t, err)
	}
	var wg sync.WaitGroup
	for _, c := range append(conns, accepted...) {
		wg.Go(func() { _ = c.Close() })
	}
	wg.Wait()
}

func rss(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for l := range strings.Lines(string(b)) {
		if strings.HasPrefix(l, "VmRSS:") {
			return strings.Join(strings.Fields(l), " ")
		}
	}
	return ""
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
