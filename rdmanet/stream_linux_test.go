package rdmanet_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rdmanet"
)

func TestAddresses(t *testing.T) {
	client, server := pair(t)
	assert.Equal(t, client.LocalAddr(), server.RemoteAddr())
	assert.Equal(t, client.RemoteAddr(), server.LocalAddr())
	for _, a := range []net.Addr{client.LocalAddr(), client.RemoteAddr()} {
		assert.IsType(t, (*rdmanet.Addr)(nil), a)
		assert.Equal(t, "rdma", a.Network())
		host, port, err := net.SplitHostPort(a.String())
		require.NoError(t, err)
		assert.Equal(t, local4, host)
		assert.NotEqual(t, "0", port)
	}
}

// Both ends write more than all buffers hold before either reads.
func TestFullWindowsBothWays(t *testing.T) {
	size := 8 << 20
	if race.Enabled {
		size = 3 << 20 // still three times the rings
	}
	client, server := pair(t)
	var wg sync.WaitGroup
	for _, c := range []*rdmanet.Conn{client, server} {
		wg.Go(func() { assert.NoError(t, writePattern(c, size, 256<<10)) })
		wg.Go(func() {
			time.Sleep(300 * time.Millisecond)
			assert.NoError(t, readPattern(c, size))
		})
	}
	within(t, 60*time.Second, "both directions", wg.Wait)
}

func TestWriteOfAnyLength(t *testing.T) {
	large := 24 << 20
	if race.Enabled {
		large = 4 << 20
	}
	for _, size := range []int{0, 1, 1023, 1024, 1025, 4096, 65535, 65537, 1<<20 + 1, large} {
		client, server := pair(t)
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, readPattern(server, size)) })
		b := make([]byte, size)
		new(pattern).fill(b)
		n, err := client.Write(b)
		require.NoError(t, err)
		assert.Equal(t, size, n)
		within(t, 60*time.Second, "Read", wg.Wait)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// Each Write is whole in the stream: writers exclude each other.
func TestWritesDoNotMix(t *testing.T) {
	const writers, rounds, size = 4, 10, 100 << 10
	client, server := pair(t)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			b := bytes.Repeat([]byte{byte(i)}, size)
			for range rounds {
				if _, err := client.Write(b); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	b := make([]byte, size)
	for range writers * rounds {
		_, err := io.ReadFull(server, b)
		require.NoError(t, err)
		require.Equal(t, -1, bytes.IndexFunc(b, func(r rune) bool { return r != rune(b[0]) }))
	}
	wg.Wait()
}

func TestCopyFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	data := make([]byte, 3<<20+17)
	rand.Read(data)
	require.NoError(t, os.WriteFile(name, data, 0o666))
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()

	client, server := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		n, err := io.Copy(client, f)
		assert.NoError(t, err)
		assert.EqualValues(t, len(data), n)
		assert.NoError(t, client.CloseWrite())
	})
	h := sha256.New()
	n, err := io.Copy(h, server)
	require.NoError(t, err)
	assert.EqualValues(t, len(data), n)
	assert.Equal(t, sha256.Sum256(data), [32]byte(h.Sum(nil)))
	wg.Wait()
}

// No lock is held while ReadFrom waits for its source.
func TestReadFromLeavesWriters(t *testing.T) {
	client, server := pair(t)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := client.ReadFrom(r)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	within(t, 5*time.Second, "Write beside ReadFrom", func() {
		_, err := client.Write([]byte("direct"))
		assert.NoError(t, err)
	})
	_, err := w.Write([]byte("piped"))
	require.NoError(t, err)
	b := make([]byte, 11)
	_, err = io.ReadFull(server, b)
	require.NoError(t, err)
	assert.Equal(t, "directpiped", string(b))

	require.NoError(t, w.CloseWithError(os.ErrPermission))
	assert.Equal(t, os.ErrPermission, <-done, "an error of the source comes as it is")
}

// TestReadFromNothing: what cannot be written is no matter for a source that has nothing to write, and its error comes first, as with TCP.
func TestReadFromNothing(t *testing.T) {
	type streamer interface {
		net.Conn
		io.ReaderFrom
		CloseWrite() error
	}
	for name, spoil := range map[string]func(t *testing.T, c, peer streamer) (wrong error){
		"peer closed": func(t *testing.T, c, peer streamer) error {
			require.NoError(t, peer.Close())
			_, err := c.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			return nil // TCP takes the first bytes and loses them
		},
		"CloseWrite": func(t *testing.T, c, _ streamer) error { require.NoError(t, c.CloseWrite()); return syscall.EPIPE },
		"closed":     func(t *testing.T, c, _ streamer) error { require.NoError(t, c.Close()); return net.ErrClosed },
		"late": func(t *testing.T, c, _ streamer) error {
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(-time.Second)))
			return os.ErrDeadlineExceeded
		},
		"full": func(t *testing.T, c, _ streamer) error {
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			for b := make([]byte, 64<<10); ; {
				if _, err := c.Write(b); err != nil {
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					break
				}
			}
			require.NoError(t, c.SetWriteDeadline(time.Time{}))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			for transport, dial := range map[string]func() (c, peer streamer){
				"TCP": func() (streamer, streamer) {
					l, err := net.Listen("tcp", "127.0.0.1:0")
					require.NoError(t, err)
					defer func() { _ = l.Close() }()
					c, err := net.Dial("tcp", l.Addr().String())
					require.NoError(t, err)
					peer, err := l.Accept()
					require.NoError(t, err)
					t.Cleanup(func() { _, _ = c.Close(), peer.Close() })
					return c.(*net.TCPConn), peer.(*net.TCPConn)
				},
				"RDMA": func() (streamer, streamer) {
					c, peer := pair(t)
					require.NoError(t, c.SetLinger(0)) // of what is written here nobody reads all
					return c, peer
				},
			} {
				c, peer := dial()
				wrong := spoil(t, c, peer)
				within(t, 10*time.Second, "ReadFrom over "+transport, func() {
					n, err := c.ReadFrom(struct{ io.Reader }{strings.NewReader("")})
					assert.NoError(t, err, transport)
					assert.Zero(t, n, transport)
					n, err = c.ReadFrom(iotest.ErrReader(os.ErrPermission))
					assert.ErrorIs(t, err, os.ErrPermission, transport)
					assert.Zero(t, n, transport)
					if wrong != nil {
						n, err = c.ReadFrom(struct{ io.Reader }{strings.NewReader("x")})
						assert.ErrorIs(t, err, wrong, transport)
						assert.Zero(t, n, transport)
					}
				})
			}
		})
	}
}

// failingWriter is a destination whose error WriteTo must hand on as it is.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, os.ErrPermission }

func TestWriteToDestinationFails(t *testing.T) {
	client, server := pair(t)
	_, err := client.Write([]byte("x"))
	require.NoError(t, err)
	_, err = server.WriteTo(failingWriter{})
	assert.Equal(t, os.ErrPermission, err)
}

func TestWriteBuffers(t *testing.T) {
	client, server := pair(t)
	var want []byte
	var v net.Buffers
	for i := range 100 {
		b := bytes.Repeat([]byte{byte(i)}, i*37)
		want = append(want, b...)
		v = append(v, b)
	}
	n, err := client.WriteBuffers(&v)
	require.NoError(t, err)
	assert.EqualValues(t, len(want), n)
	assert.Empty(t, v, "consumed")
	got := make([]byte, len(want))
	_, err = io.ReadFull(server, got)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestBufferSizes(t *testing.T) {
	d := &rdmanet.Dialer{ReadBuffer: 8 << 10, WriteBuffer: 8 << 10, BusyPoll: -1}
	lc := &rdmanet.ListenConfig{ReadBuffer: 16 << 10, WriteBuffer: 16 << 10, BusyPoll: 20 * time.Microsecond}
	client, server := pairOf(t, d, lc)
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, writePattern(client, 1<<20, 100<<10)) })
	require.NoError(t, readPattern(server, 1<<20))
	wg.Wait()
	assert.LessOrEqual(t, server.Stats().ReadBuffer, 32<<10)

	require.NoError(t, server.SetReadBuffer(1<<20))
	require.NoError(t, client.SetWriteBuffer(1<<20))
	require.NoError(t, client.SetBusyPoll(0))
	wg.Go(func() { assert.NoError(t, writePattern(client, 4<<20, 100<<10)) })
	require.NoError(t, readPattern(server, 4<<20))
	wg.Wait()
}

func TestUnwrap(t *testing.T) {
	client, _ := pair(t)
	c, ok := rdmanet.Unwrap(client)
	assert.True(t, ok)
	assert.Same(t, client, c)
	c, ok = rdmanet.Unwrap(tls.Client(client, &tls.Config{ServerName: "x"}))
	assert.True(t, ok)
	assert.Same(t, client, c)

	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for _, c := range []net.Conn{a, nil, (*rdmanet.Conn)(nil), &loop{}} {
		_, ok := rdmanet.Unwrap(c)
		assert.False(t, ok)
	}
}

// loop says that it stands on itself.
type loop struct{ net.Conn }

func (l *loop) NetConn() net.Conn { return l }

// The zero Conn and the nil one fail; they do not crash.
func TestZeroConn(t *testing.T) {
	for _, c := range []*rdmanet.Conn{nil, new(rdmanet.Conn)} {
		_, err := c.Read(nil)
		assert.Error(t, err)
		_, err = c.Write(nil)
		assert.Error(t, err)
		assert.Error(t, c.Close())
		assert.Error(t, c.SetDeadline(time.Time{}))
		assert.Nil(t, c.LocalAddr())
		assert.Nil(t, c.RemoteAddr())
		assert.Zero(t, c.Stats())
	}
}

func TestStats(t *testing.T) {
	// Connections of a test before may still be on their way out.
	require.Eventually(t, func() bool { return deviceStats(provider()).Conns == 0 }, 10*time.Second, time.Millisecond)
	before := deviceStats(provider())
	client, server := pair(t)
	require.NoError(t, writePattern(client, 100<<10, 10<<10))
	require.NoError(t, readPattern(server, 100<<10))
	c, s := client.Stats(), server.Stats()
	assert.Equal(t, provider(), c.Provider)
	assert.NotEmpty(t, c.Device)
	assert.EqualValues(t, 100<<10, c.BytesWritten)
	assert.EqualValues(t, 100<<10, s.BytesRead)
	assert.NotZero(t, c.MessagesWritten)
	assert.NotZero(t, s.MessagesRead)
	assert.NotZero(t, s.ReadBuffer)

	now := deviceStats(provider())
	assert.Equal(t, before.Conns+2, now.Conns)
	assert.Equal(t, before.Dials+1, now.Dials)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	after := deviceStats(provider())
	assert.Equal(t, before.Conns, after.Conns)
	assert.GreaterOrEqual(t, after.BytesWritten, before.BytesWritten+100<<10, "closed connections count")
	assert.GreaterOrEqual(t, after.BytesRead, before.BytesRead+100<<10)
}

func deviceStats(provider string) (sum rdmanet.DeviceStats) {
	for _, d := range rdmanet.AllStats() {
		if d.Provider == provider { // what failed early has no device
			sum.Conns += d.Conns
			sum.Dials += d.Dials
			sum.BytesRead += d.BytesRead
			sum.BytesWritten += d.BytesWritten
		}
	}
	return sum
}
