package rdmanet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rdmanet"
)

const siteTimeout = 300 * time.Millisecond

// siteRole is a web server in a process of its own. With the files of a certificate
// and its key as arguments it serves TLS; with "timeouts", it has some.
func siteRole() error {
	l, err := rdmanet.Listen("rdma", net.JoinHostPort(local4, "0"))
	if err != nil {
		return err
	}
	closing := make(chan struct{})
	s := &http.Server{Handler: siteHandler(closing), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.RegisterOnShutdown(func() { close(closing) })
	down := make(chan error, 1)
	go func() {
		untilStdinEnds()
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		down <- s.Shutdown(ctx)
	}()
	fmt.Println(l.Addr())
	if len(os.Args) == 3 {
		err = s.ServeTLS(l, os.Args[1], os.Args[2])
	} else {
		if len(os.Args) == 2 {
			s.ReadTimeout, s.ReadHeaderTimeout, s.WriteTimeout, s.IdleTimeout = siteTimeout, siteTimeout, siteTimeout, siteTimeout
		}
		err = s.Serve(l)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-down
}

func siteHandler(closing <-chan struct{}) http.Handler {
	var cancelled atomic.Int64
	var mu sync.Mutex
	groups := map[string]*sync.WaitGroup{}
	mux := http.NewServeMux()
	// together/N/NAME answers when N requests of the name are in their handlers.
	mux.HandleFunc("POST /together/{n}/{name}", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var n int
		fmt.Sscan(r.PathValue("n"), &n)
		mu.Lock()
		g := groups[r.PathValue("name")]
		if g == nil {
			g = new(sync.WaitGroup)
			g.Add(n)
			groups[r.PathValue("name")] = g
		}
		mu.Unlock()
		g.Done()
		g.Wait()
		w.Write(b)
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
		cancelled.Add(1)
		// Not an end that is orderly: where TLS is closed the server may be told before the client's own end is, and be as fast.
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/cancelled", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, cancelled.Load()) })
	mux.HandleFunc("/hold", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "held")
		http.NewResponseController(w).Flush()
		<-closing
		fmt.Fprintln(w, "finished")
	})
	mux.HandleFunc("/read", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(64<<20))
		w.Write(make([]byte, 64<<20))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(c, rw)
	})
	return mux
}

// site is the two servers of a test and how to reach them in a mode.
type site struct{ plain, tls *process }

func startSite(t *testing.T) (s site, client func(t testing.TB, m httpMode) (*http.Client, string)) {
	cert, key, cfg := tlsFiles(t)
	s = site{start(t, "site"), start(t, "site", cert, key)}
	return s, func(t testing.TB, m httpMode) (*http.Client, string) {
		tr := m.transport(t)
		if !m.tls {
			return &http.Client{Transport: tr}, "http://" + s.plain.ready
		}
		tr.TLSClientConfig = cfg
		return &http.Client{Transport: tr}, "https://" + s.tls.ready
	}
}

func (s site) stop(t testing.TB) {
	s.plain.stop(t)
	s.tls.stop(t)
}

func TestProcessesManyConnections(t *testing.T) {
	n := 500
	if race.Enabled {
		n = 150
	}
	s, to := startSite(t)
	eachMode(t, func(t *testing.T, m httpMode) {
		c, url := to(t, m)
		n := n
		if m.major == 2 {
			n = 100 // streams, of which a server allows 250
		}
		errs := make(chan error, n)
		for i := range n {
			go func() {
				want := strings.Repeat(fmt.Sprintf("request %d ", i), 500)
				resp, err := c.Post(fmt.Sprintf("%s/together/%d/%d%v", url, n, m.major, m.tls), "text/plain", strings.NewReader(want))
				if err == nil {
					var got []byte
					got, err = io.ReadAll(resp.Body)
					resp.Body.Close()
					if err == nil && string(got) != want {
						err = errors.New("another body")
					}
				}
				errs <- err
			}()
		}
		within(t, 60*time.Second, "requests", func() {
			for range n {
				require.NoError(t, <-errs)
			}
		})
	})
	s.stop(t)
}

func TestProcessesCancel(t *testing.T) {
	s, to := startSite(t)
	want := map[bool]int{}
	eachMode(t, func(t *testing.T, m httpMode) {
		c, url := to(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/wait", nil)
		require.NoError(t, err)
		resp, err := c.Do(req) // the handler is at work
		require.NoError(t, err)
		cancel()
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, context.Canceled)
		resp.Body.Close()
		want[m.tls]++
		require.Eventually(t, func() bool {
			_, b := get(t, c, url+"/cancelled")
			return b == fmt.Sprint(want[m.tls])
		}, 10*time.Second, 5*time.Millisecond)
	})
	s.stop(t)
}

// A server that is told to end finishes what it is at, and takes nothing new.
func TestProcessesShutdown(t *testing.T) {
	s, to := startSite(t)
	type held struct {
		body io.ReadCloser
		r    *bufio.Reader
	}
	var all []held
	for _, m := range httpModes {
		c, url := to(t, m)
		resp, err := c.Get(url + "/hold")
		require.NoError(t, err)
		defer resp.Body.Close()
		h := held{resp.Body, bufio.NewReader(resp.Body)}
		line, err := h.r.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "held\n", line)
		all = append(all, h)
	}
	s.plain.stdin.Close()
	s.tls.stdin.Close()
	for _, h := range all {
		rest, err := io.ReadAll(h.r)
		require.NoError(t, err)
		require.Equal(t, "finished\n", string(rest))
		h.body.Close()
	}
	s.stop(t)
	_, err := rdmanet.Dial("rdma", s.plain.ready)
	require.Error(t, err)
}

func TestProcessesTimeouts(t *testing.T) {
	p := start(t, "site", "timeouts")
	addr, err := rdmanet.ResolveAddr("rdma", p.ready)
	require.NoError(t, err)
	// ended sends a piece of a request and returns what the server said before it ended the connection.
	ended := func(request string) string {
		c := dial(t, nil, net.Addr(addr))
		_, err := io.WriteString(c, request)
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		begin := time.Now()
		b, err := io.ReadAll(c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.GreaterOrEqual(t, time.Since(begin), siteTimeout/2)
		return string(b)
	}
	ended("GET / HT")
	ended("POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
	assert.Contains(t, ended("POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"), "200 OK") // then idle

	c := dial(t, nil, net.Addr(addr))
	_, err = io.WriteString(c, "GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	time.Sleep(3 * siteTimeout) // the write times out meanwhile
	require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, resp.Body)
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Less(t, n, int64(64<<20))
	p.stop(t)
}

func TestProcessesHijack(t *testing.T) {
	p := start(t, "site")
	addr, err := rdmanet.ResolveAddr("rdma", p.ready)
	require.NoError(t, err)
	c := dial(t, nil, net.Addr(addr))
	_, err = io.WriteString(c, "GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b[0]) {
		_, err := c.Read(b)
		require.NoError(t, err)
	}
	require.Contains(t, string(head), "101 Switching Protocols")
	go func() {
		writePattern(c, 4<<20, 10000)
		c.CloseWrite()
	}()
	require.NoError(t, readPattern(c, 4<<20))
	_, err = c.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	require.NoError(t, c.Close())
	p.stop(t)
}
