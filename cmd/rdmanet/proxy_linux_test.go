package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chain puts two proxies in front of a TCP server: from TCP to RDMA and back, as on two hosts. It returns where clients connect.
func chain(t *testing.T, server string, flags ...string) (addr string, near, far *process) {
	t.Helper()
	far = start(t, append([]string{"proxy", "rdma://127.0.0.1:0", "tcp://" + server, "-v"}, flags...)...)
	rdma := far.says(`rdma://(127\.0\.0\.1:\d+) -> `)[1]
	near = start(t, append([]string{"proxy", "tcp://127.0.0.1:0", "rdma://" + rdma, "-v"}, flags...)...)
	return near.says(`tcp://(127\.0\.0\.1:\d+) -> `)[1], near, far
}

// freePort is a TCP port that nobody has.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// command runs a program to its good end.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	require.NoError(t, err, "%s %q: %s", name, args, out)
	return string(out)
}

// redis-benchmark and redis-cli find redis-server over RDMA: many connections, pipelines, large values.
func TestProxyRedis(t *testing.T) {
	need(t, "redis-server", "redis-cli", "redis-benchmark")
	port := freePort(t)
	s := startCommand(t, exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir()))
	s.says("Ready to accept connections")
	addr, _, _ := chain(t, "127.0.0.1:"+port)
	_, at, err := net.SplitHostPort(addr)
	require.NoError(t, err)

	value := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	file := filepath.Join(t.TempDir(), "value")
	require.NoError(t, os.WriteFile(file, []byte(value), 0o600))
	command(t, "sh", "-c", "redis-cli -p "+at+" -x set key <"+file)
	assert.Equal(t, value+"\n", command(t, "redis-cli", "-p", at, "get", "key"))

	out := command(t, "redis-benchmark", "-p", at, "-c", "50", "-n", "5000", "-t", "ping,set,get,lrange_100", "--csv")
	for _, name := range []string{"PING_INLINE", "PING_MBULK", "SET", "GET", "LRANGE_100 (first 100 elements)"} {
		assert.Contains(t, out, `"`+name+`"`)
	}
	out = command(t, "redis-benchmark", "-p", at, "-c", "20", "-n", "20000", "-P", "16", "-d", "3000", "-t", "set,get", "--csv")
	assert.Contains(t, out, `"GET"`)
}

// curl fetches a file from Python's server, which ends its answer by closing.
func TestProxyHTTP(t *testing.T) {
	need(t, "curl", "python3")
	dir := t.TempDir()
	body := make([]byte, 8<<20)
	_, _ = rand.Read(body)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), body, 0o600))
	port := freePort(t)
	startCommand(t, exec.Command("python3", "-m", "http.server", "-b", "127.0.0.1", "-d", dir, port))
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, patience, 5*time.Millisecond)

	// A Unix socket at the client's end.
	far := start(t, "proxy", "rdma://127.0.0.1:0", "tcp://127.0.0.1:"+port)
	rdma := far.says(`rdma://(127\.0\.0\.1:\d+) -> `)[1]
	socket := filepath.Join(t.TempDir(), "http")
	near := start(t, "proxy", "unix://"+socket, "rdma://"+rdma)
	near.says(`unix://` + socket + ` -> rdma://`)
	for range 3 {
		got := filepath.Join(t.TempDir(), "got")
		command(t, "curl", "-sSf", "--unix-socket", socket, "-o", got, "http://server/file")
		b, err := os.ReadFile(got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(body, b))
	}
	near.signal(syscall.SIGINT)
	status, _, errOut := near.ends()
	assert.Equal(t, 0, status)
	assert.Empty(t, errOut)
	assert.NoFileExists(t, socket)
}

// server serves TCP connections until the test ends.
func server(t *testing.T, serve func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c.(*net.TCPConn)
}

func TestProxyEnds(t *testing.T) {
	t.Run("half-close", func(t *testing.T) {
		addr, near, _ := chain(t, server(t, func(c *net.TCPConn) {
			b, _ := io.ReadAll(c) // until the client's end
			_, _ = c.Write(bytes.ToUpper(b))
		}))
		c := dial(t, addr)
		_, err := io.WriteString(c, strings.Repeat("question ", 100000))
		require.NoError(t, err)
		require.NoError(t, c.CloseWrite())
		b, err := io.ReadAll(c)
		require.NoError(t, err)
		assert.Equal(t, strings.Repeat("QUESTION ", 100000), string(b))
		near.says(`connection 1: from 127\.0\.0\.1:\d+ by 127\.0\.0\.1:\d+ to 127\.0\.0\.1:\d+\n`)
		near.says(`connection 1: 879 KiB there, 879 KiB back, .*: ended\n`)
	})
	t.Run("the server ends first", func(t *testing.T) {
		addr, _, _ := chain(t, server(t, func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "bye")
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		}))
		c := dial(t, addr)
		b, err := io.ReadAll(c)
		require.NoError(t, err)
		assert.Equal(t, "bye", string(b))
		_, err = io.WriteString(c, "still here")
		require.NoError(t, err)
	})
	t.Run("reset", func(t *testing.T) {
		addr, near, _ := chain(t, server(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			_ = c.SetLinger(0)
		}))
		c := dial(t, addr)
		_, err := c.Write([]byte{1})
		require.NoError(t, err)
		_, err = io.ReadAll(c)
		assert.ErrorIs(t, err, syscall.ECONNRESET, "and not an orderly end")
		near.says(`connection 1: .* connection reset`)
	})
	t.Run("nobody serves", func(t *testing.T) {
		addr, near, far := chain(t, "127.0.0.1:"+freePort(t))
		_, err := io.ReadAll(dial(t, addr))
		assert.ErrorIs(t, err, syscall.ECONNRESET)
		far.says(`connection 1: dial tcp .*: connection refused\n`)
		near.says(`connection 1: .*there`)
	})
	t.Run("Ctrl-C lets connections end", func(t *testing.T) {
		addr, near, far := chain(t, server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }), "--grace", "1h")
		c := dial(t, addr)
		pong := func() {
			b := make([]byte, 4)
			_, err := io.WriteString(c, "ping")
			require.NoError(t, err)
			_, err = io.ReadFull(c, b)
			require.NoError(t, err)
		}
		pong()
		for _, p := range []*process{near, far} {
			p.signal(syscall.SIGINT)
			p.says(`waiting 1h0m0s for connections to end, 1 are open; Ctrl-C ends them\n`)
		}
		pong()
		_, err := net.Dial("tcp", addr)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NoError(t, c.Close())
		for _, p := range []*process{near, far} {
			status, _, _ := p.ends()
			assert.Equal(t, 0, status)
		}
	})
	t.Run("Ctrl-C and no time", func(t *testing.T) {
		addr, near, _ := chain(t, server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }), "--grace", "0s")
		c := dial(t, addr)
		_, err := c.Write([]byte{1})
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, 1))
		require.NoError(t, err)
		near.signal(syscall.SIGTERM)
		status, _, _ := near.ends()
		assert.Equal(t, 0, status)
		_, err = c.Read(make([]byte, 1))
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// Many connections, each with data of its own.
func TestProxyMany(t *testing.T) {
	addr, _, _ := chain(t, server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }))
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			c, err := net.Dial("tcp", addr)
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			assert.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			out := bytes.Repeat([]byte{byte(i), byte(i >> 4), 7}, 30000)
			wg.Go(func() {
				_, err := c.Write(out)
				assert.NoError(t, err)
				assert.NoError(t, c.(*net.TCPConn).CloseWrite())
			})
			in, err := io.ReadAll(c)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(in, out))
		})
	}
	wg.Wait()
}

func TestProxyListens(t *testing.T) {
	port := freePort(t)
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	require.NoError(t, err)
	defer l.Close()
	status, _, errOut := runTool(t, "proxy", "tcp://127.0.0.1:"+port, "rdma://127.0.0.1:1")
	assert.Equal(t, 1, status)
	assert.Contains(t, errOut, "address already in use")
	// RDMA's ports are others.
	p := start(t, "proxy", "rdma://127.0.0.1:"+port, "tcp://127.0.0.1:1")
	p.says(`rdma://127\.0\.0\.1:` + port + ` -> tcp`)
}
