package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func init() { roles["reader"] = readerRole }

// readerRole connects to the address in its first argument, reads to the end and tells what that was.
func readerRole() error {
	c, err := rdmanet.Dial("rdma", os.Args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("reading")
	n, err := io.Copy(io.Discard, c)
	fmt.Println("read", n, errors.Is(err, syscall.ECONNRESET), err)
	untilStdinEnds()
	return nil
}

// TestStoppedTooLong: a process that is stopped for longer than its peer's patience finds its connection reset when it
// goes on, not ended in order; the peer has had ETIMEDOUT. One that goes on in time has lost nothing.
func TestStoppedTooLong(t *testing.T) {
	t.Parallel() // it mostly waits
	lc := &rdmanet.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 500 * time.Millisecond, Interval: 500 * time.Millisecond, Count: 4,
	}}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	p := startAs(t, uint32(os.Geteuid()), "reader", l.Addr().String())
	c := accept(t, l.(*rdmanet.Listener))
	require.Equal(t, "reading", p.line(t))
	readFor := func(d time.Duration) error {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(d)))
		_, err := c.Read(make([]byte, 1))
		return err
	}
	for range 2 {
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		require.ErrorIs(t, readFor(time.Second), os.ErrDeadlineExceeded)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
		require.ErrorIs(t, readFor(1500*time.Millisecond), os.ErrDeadlineExceeded)
		_, err = c.Write(make([]byte, 1000))
		require.NoError(t, err)
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	begin := time.Now()
	require.ErrorIs(t, readFor(15*time.Second), syscall.ETIMEDOUT)
	t.Log("given up after", time.Since(begin))
	c.Close()
	time.Sleep(time.Second)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	text := p.line(t)
	t.Log(text)
	assert.Contains(t, text, "read 2000 true ")
	p.end(t)
}
