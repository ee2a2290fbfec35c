package rdmanet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/rdmanet"
)

// roleEnv makes this program, run again, the other process of a test.
const roleEnv = "RDMANET_TEST_ROLE"

// long asks for the full measure of what is otherwise kept short: RDMA_LONG=1.
var long = os.Getenv("RDMA_LONG") != ""

func TestMain(m *testing.M) {
	if os.Getenv("RDMANET_DEVICE") == "" && os.Getenv(chosenEnv) == "" {
		os.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	}
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(playRole(role))
	}
	// The race detector lets a process that ends sleep for a second, which tests with many of them have no time for.
	os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	if os.Getenv("RDMANET_TEST_ADDRS") == "" {
		testnet.Main() // other packages' tests stop processes, too
	}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the runtime's poller keeps its files
	}
	if os.Getenv("RDMANET_TEST_ADDRS") != "" {
		warmUp() // librdmacm keeps a device open that it has opened
	}
	files := openFiles()
	leak.Start()
	code := m.Run()
	if code == 0 {
		if err := leaks(files); err != nil {
			fmt.Fprintln(os.Stderr, "rdmanet: after all tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// local4 and local6 are the addresses that most tests listen on and dial. RDMANET_TEST_ADDRS, the two with a comma
// between, are others: those of a device.
var local4, local6 = func() (string, string) {
	if a, b, ok := strings.Cut(os.Getenv("RDMANET_TEST_ADDRS"), ","); ok {
		return a, b
	}
	return "127.0.0.1", "::1"
}()

// warmUp connects once and closes everything.
func warmUp() {
	l, err := rdmaListen()
	if err != nil {
		return // the tests tell
	}
	_, _, stop, err := pipe(rdmaDial, l)
	if err != nil {
		return
	}
	stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = rdmanet.Drain(ctx) // as above
	time.Sleep(time.Second)
}

func openFiles() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(names)
}

// leaks waits until nothing is left of what the tests did, or tells what is.
func leaks(files int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := rdmanet.Drain(ctx); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	for {
		err := left(files)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func left(files int) error {
	for _, d := range rdmanet.AllStats() {
		if d.Conns != 0 || d.ReadBuffer != 0 || d.WriteBuffer != 0 {
			return fmt.Errorf("%d connections on %q, with buffers of %d and %d bytes", d.Conns, d.Device, d.ReadBuffer, d.WriteBuffer)
		}
	}
	if open, arenas, bytes := rc.Usage(); open != 0 || arenas != 0 || bytes != 0 {
		return fmt.Errorf("%d devices, %d arenas, %d bytes of registered memory in use", open, arenas, bytes)
	}
	if err := leak.Find(0); err != nil {
		return err
	}
	if n := openFiles(); n > files {
		return fmt.Errorf("%d open files, %d before", n, files)
	}
	// That one hears of the removal of devices, as long as there is the process.
	return goleak.Find(goleak.IgnoreAnyFunction("github.com/go-rdma/rdma/internal/verbs/rdmacore.(*eventChannel).run"))
}

// listen listens on loopback until the test ends.
func listen(t testing.TB, lc *rdmanet.ListenConfig) *rdmanet.Listener {
	t.Helper()
	if lc == nil {
		lc = new(rdmanet.ListenConfig)
	}
	l, err := lc.Listen(context.Background(), "rdma", net.JoinHostPort(local4, "0"))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*rdmanet.Listener)
}

// dial connects until the test ends.
func dial(t testing.TB, d *rdmanet.Dialer, addr net.Addr) *rdmanet.Conn {
	t.Helper()
	if d == nil {
		d = new(rdmanet.Dialer)
	}
	c, err := d.Dial("rdma", addr.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*rdmanet.Conn)
}

// accept takes one connection, until the test ends.
func accept(t testing.TB, l *rdmanet.Listener) *rdmanet.Conn {
	t.Helper()
	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Second)))
	c, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*rdmanet.Conn)
}

// pair returns the two ends of a connection.
func pair(t testing.TB) (client, server *rdmanet.Conn) {
	t.Helper()
	return pairOf(t, nil, nil)
}

func pairOf(t testing.TB, d *rdmanet.Dialer, lc *rdmanet.ListenConfig) (client, server *rdmanet.Conn) {
	t.Helper()
	l := listen(t, lc)
	client = dial(t, d, l.Addr())
	server = accept(t, l)
	return client, server
}

// noConn and noListener tell nil from a typed nil, which testify's Nil does not.
func noConn(c net.Conn) bool         { return c == nil }
func noListener(l net.Listener) bool { return l == nil }

// within fails the test if f takes longer than d.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		require.FailNow(t, "takes too long", "%s: more than %v", what, d)
	}
}

// pattern is a stream of bytes whose order can be checked.
type pattern struct{ n uint64 }

func (p *pattern) fill(b []byte) {
	for i := range b {
		b[i] = byte(p.n ^ p.n>>8*7 ^ p.n>>16*13)
		p.n++
	}
}

// check returns the index of the first byte that is wrong, or -1.
func (p *pattern) check(b []byte) int {
	for i, c := range b {
		if c != byte(p.n^p.n>>8*7^p.n>>16*13) {
			return i
		}
		p.n++
	}
	return -1
}

// readPattern reads n bytes and checks them.
func readPattern(r io.Reader, n int) error {
	var p pattern
	buf := make([]byte, 64<<10)
	for n > 0 {
		m, err := r.Read(buf[:min(n, len(buf))])
		if i := p.check(buf[:m]); i >= 0 {
			return fmt.Errorf("byte %d is wrong", p.n)
		}
		if n -= m; err != nil && n > 0 {
			return fmt.Errorf("%d bytes short: %w", n, err)
		}
	}
	return nil
}

// writePattern writes n bytes in pieces of at most size.
func writePattern(w io.Writer, n, size int) error {
	var p pattern
	buf := make([]byte, size)
	for n > 0 {
		b := buf[:min(n, size)]
		p.fill(b)
		if _, err := w.Write(b); err != nil {
			return err
		}
		n -= len(b)
	}
	return nil
}
