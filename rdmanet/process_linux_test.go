package rdmanet_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// roles are what another process of a test does. Each prints a line when it is
// ready and ends when its standard input does.
var roles = map[string]func() error{
	"http":   httpRole,
	"site":   siteRole,
	"echo":   echoRole,
	"dial":   dialRole,
	"nofile": noFileRole,
}

func playRole(name string) int {
	f := roles[name]
	if f == nil {
		fmt.Fprintln(os.Stderr, "no role", name)
		return 2
	}
	if err := f(); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := rdmanet.Drain(ctx); err != nil {
		fmt.Fprintln(os.Stderr, name+": drain:", err)
		return 1
	}
	return 0
}

func untilStdinEnds() { io.Copy(io.Discard, os.Stdin) }

// httpRole serves HTTP: what is posted comes back as its checksum, what is got is /size bytes. With
// the files of a certificate and its key as arguments it does so inside TLS.
func httpRole() error {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			h := sha256.New()
			n, err := io.Copy(h, r.Body)
			fmt.Fprint(w, n, " ", hex.EncodeToString(h.Sum(nil)), " ", err)
			return
		}
		var size int64
		fmt.Sscanf(r.URL.Path, "/%d", &size)
		b, sum := body(size)
		w.Header().Set("Trailer", "Sum")
		io.Copy(w, b)
		w.Header().Set("Sum", sum())
	})}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		untilStdinEnds()
		s.Shutdown(context.Background())
	}()
	fmt.Println(l.Addr())
	if len(os.Args) == 3 {
		err = s.ServeTLS(l, os.Args[1], os.Args[2])
	} else {
		err = s.Serve(l)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// echoRole sends back what it gets, at the address in its first argument, if there is one.
func echoRole() error {
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	l, err := rdmanet.Listen("rdma", address)
	if err != nil {
		return err
	}
	go func() {
		untilStdinEnds()
		l.Close()
	}()
	fmt.Println(l.Addr())
	var conns sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			conns.Wait()
			return nil
		}
		conns.Go(func() {
			io.Copy(c, c)
			c.Close()
		})
	}
}

// dialRole connects to the address in its first argument and does nothing.
func dialRole() error {
	c, err := rdmanet.Dial("rdma", os.Args[1])
	if err != nil {
		return err
	}
	fmt.Println(c.LocalAddr())
	untilStdinEnds()
	return c.Close()
}

// process is another process of a test.
type process struct {
	cmd   *exec.Cmd
	ready string // the line it printed
	stdin io.Closer
	ended chan error
}

func start(t testing.TB, role string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, role, args...)
}

func startWith(t testing.TB, attr *syscall.SysProcAttr, role string, args ...string) *process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(exe, args...), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+role)
	p.cmd.SysProcAttr = attr
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.ended
	})
	sc := bufio.NewScanner(out)
	ok := sc.Scan()
	p.ready = sc.Text()
	go func() {
		io.Copy(io.Discard, out)
		err := p.cmd.Wait()
		p.ended <- err
		close(p.ended)
	}()
	require.True(t, ok, "%s did not start: %v", role, sc.Err())
	return p
}

// stop ends the process as it ends by itself.
func (p *process) stop(t testing.TB) {
	t.Helper()
	p.stdin.Close()
	within(t, 20*time.Second, "the other process's end", func() { require.NoError(t, <-p.ended) })
}

func TestProcessesHTTP(t *testing.T) {
	p := start(t, "http")
	cert, key, clientTLS := tlsFiles(t)
	overTLS := start(t, "http", cert, key)
	eachMode(t, func(t *testing.T, m httpMode) {
		t.Run("large bodies", func(t *testing.T) {
			size := bodySize(m)
			tr, server := m.transport(t), "http://"+p.ready
			if m.tls {
				tr.TLSClientConfig, server = clientTLS, "https://"+overTLS.ready
			}
			client := &http.Client{Transport: tr}
			begin := time.Now()
			b, sum := body(size)
			resp, err := client.Post(server, "application/octet-stream", b)
			require.NoError(t, err)
			answer, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(size, " ", sum(), " <nil>"), string(answer))
			up := time.Since(begin)

			begin = time.Now()
			resp, err = client.Get(fmt.Sprintf("%s/%d", server, size))
			require.NoError(t, err)
			assert.Equal(t, m.major, resp.ProtoMajor)
			h := sha256.New()
			n, err := io.Copy(h, resp.Body)
			resp.Body.Close()
			require.NoError(t, err)
			assert.Equal(t, size, n)
			assert.Equal(t, resp.Trailer.Get("Sum"), hex.EncodeToString(h.Sum(nil)))
			down := time.Since(begin)
			t.Logf("%d MiB: up %.0f MB/s, down %.0f MB/s", size>>20, float64(size)/up.Seconds()/1e6, float64(size)/down.Seconds()/1e6)
		})
	})
	t.Run("many", func(t *testing.T) {
		client := &http.Client{Transport: httpModes[0].transport(t)}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				text := strings.Repeat("x", i*100)
				resp, err := client.Post("http://"+p.ready, "text/plain", strings.NewReader(text))
				if !assert.NoError(t, err) {
					return
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				assert.NoError(t, err)
				assert.Equal(t, fmt.Sprintf("%d %x <nil>", i*100, sha256.Sum256([]byte(text))), string(b))
			})
		}
		within(t, 60*time.Second, "requests", wg.Wait)
	})
	p.stop(t)
	overTLS.stop(t)
}

// A process that listens takes its port from all others of this host.
func TestProcessesPortInUse(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, "echo")
	_, err := rdmanet.Listen("rdma", p.ready)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, number, err := net.SplitHostPort(p.ready)
	require.NoError(t, err)
	// Another address of the port is the other process's too, and whoever dials it learns what may be wrong.
	at := net.JoinHostPort("127.0.0.99", number)
	_, err = rdmanet.Listen("rdma", at)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "being another process, at any")
	_, err = rdmanet.DialTimeout("rdma", at, 10*time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "listens at this address")
	p.stop(t)
	l, err := rdmanet.Listen("rdma", p.ready)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// peerDied tells whether err is that of a peer that is gone without a word.
func peerDied(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "rdma", op.Net)
}

// A killed peer on the same host is noticed at once, by readers and writers.
func TestKilledPeer(t *testing.T) {
	p := start(t, "echo")
	idle := dial(t, nil, addrOf(t, p.ready))
	busy := dial(t, nil, addrOf(t, p.ready))
	errs := make(chan error, 2)
	go func() {
		_, err := idle.Read(make([]byte, 1))
		errs <- err
	}()
	go func() { // the echo comes back into buffers that nobody empties: the writer waits
		var err error
		for err == nil {
			_, err = busy.Write(make([]byte, 64<<10))
		}
		errs <- err
	}()
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	begin := time.Now()
	for range 2 {
		within(t, 5*time.Second, "noticing a killed peer", func() { peerDied(t, <-errs) })
	}
	t.Logf("noticed after %v", time.Since(begin).Round(time.Millisecond))
	within(t, 3*time.Second, "Close", func() { assert.NoError(t, idle.Close()) })
	_, err := rdmanet.DialTimeout("rdma", p.ready, 10*time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "a dead process's port is nobody's")
}

// The same for a server whose client is killed; its listener goes on.
func TestKilledClient(t *testing.T) {
	t.Parallel() // it mostly waits
	l := listen(t, nil)
	p := start(t, "dial", l.Addr().String())
	c := accept(t, l)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	within(t, 5*time.Second, "noticing a killed peer", func() {
		_, err := c.Read(make([]byte, 1))
		peerDied(t, err)
	})
	p = start(t, "dial", l.Addr().String())
	c = accept(t, l)
	p.stop(t)
	_, err := c.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err, "one that ends in order is no failure")
}

// A process that hangs is there and does not answer: keep-alive notices, idle or
// with data in flight.
func TestStoppedPeer(t *testing.T) {
	t.Parallel() // it mostly waits
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	p := start(t, "echo")
	d := &rdmanet.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: 500 * time.Millisecond, Count: 3}}
	idle := dial(t, d, addrOf(t, p.ready))
	busy := dial(t, d, addrOf(t, p.ready))
	_, err := busy.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, readOne(busy))
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	defer p.cmd.Process.Signal(syscall.SIGCONT)
	begin := time.Now()
	errs := make(chan error, 2)
	go func() {
		_, err := idle.Read(make([]byte, 1))
		errs <- err
	}()
	go func() {
		var err error
		for err == nil {
			_, err = busy.Write(make([]byte, 64<<10))
		}
		errs <- err
	}()
	for range 2 {
		within(t, 8*time.Second, "noticing a stopped peer", func() {
			err := <-errs
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			var ne net.Error
			require.ErrorAs(t, err, &ne)
			assert.True(t, ne.Timeout())
		})
		t.Logf("noticed after %v", time.Since(begin).Round(10*time.Millisecond))
	}
	assert.Less(t, time.Since(begin), 5*time.Second)
	within(t, 5*time.Second, "Close", func() { busy.Close() })
}

// A stopped peer that goes on within the keep-alive time loses nothing.
func TestStoppedPeerGoesOn(t *testing.T) {
	t.Parallel() // it mostly waits
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	p := start(t, "echo")
	c := dial(t, nil, addrOf(t, p.ready))
	go writePattern(c, 2<<20, 10000)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(700 * time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	within(t, 30*time.Second, "the echo", func() { require.NoError(t, readPattern(c, 2<<20)) })
	require.NoError(t, c.Close())
	p.stop(t)
}

func addrOf(t testing.TB, s string) *rdmanet.Addr {
	a, err := rdmanet.ResolveAddr("rdma", s)
	require.NoError(t, err)
	return a
}

// A process without file descriptors cannot open the device, and says so.
func TestOutOfFiles(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, "nofile")
	t.Log(p.ready)
	assert.True(t, strings.HasPrefix(p.ready, "dial true true "), p.ready)
	assert.Contains(t, p.ready, "ulimit -n")
	p.stop(t)
}
