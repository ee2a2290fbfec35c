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
	if !inOwnNetwork(t, time.Minute) {
		return
	}
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

// TestStoppedBusyServer: a process that is stopped while it has connections over all ways of another one keeps
// nobody else from that one.
func TestStoppedBusyServer(t *testing.T) {
	t.Parallel() // it mostly waits
	if !inOwnNetwork(t, time.Minute) {
		return
	}
	x, busy, other := startActor(t), startActor(t), startActor(t)
	x.do(t, "pace 20")
	for i := range 60 {
		connectOnce(t, x, busy.addr, i)
	}
	for i := range 3 {
		connectOnce(t, x, other.addr, 100+i)
	}
	busy.stop(t)
	for i := range 6 {
		t.Log(connectOnce(t, x, other.addr, 200+i))
	}
	goOn(t, x, 100, 3, 4)
	busy.goOn(t)
	goOn(t, x, 0, 60, 2)
	require.Empty(t, x.unasked())
}

// TestStoppedOnAllWays: processes that are stopped while they have connections over every way that another one has
// used keep nobody else from that one.
func TestStoppedOnAllWays(t *testing.T) {
	t.Parallel() // it mostly waits
	if !inOwnNetwork(t, 2*time.Minute) {
		return
	}
	x := startActor(t)
	// A connection takes one of the four ways that are its peer process's part, as the process's slot tells.
	const parts, conns = 4, 16
	x.do(t, "pace 20")
	var busy []*actorProcess
	for taken := make(map[int]bool); len(taken) < parts; {
		before := slots(t)
		p := startActor(t)
		for slot := range slots(t) {
			if part := slot % parts; !before[slot] && !taken[part] {
				taken[part] = true
				busy = append(busy, p)
				p = nil
				break
			}
		}
		if p != nil { // such a one is there
			p.kill()
		}
	}
	for i := range conns * parts {
		connectOnce(t, x, busy[i%parts].addr, i)
	}
	goOn(t, x, 0, conns*parts, 10) // long enough for each process to take its ways for itself
	other := startActor(t)
	for _, p := range busy {
		p.stop(t)
	}
	const dials = 6
	begin := time.Now()
	for i := range dials {
		took := connectOnce(t, x, other.addr, 1000+i)
		t.Log(took)
		assert.Less(t, took, 5*time.Second)
	}
	goOn(t, x, 1000, dials, 4)
	require.Less(t, time.Since(begin), 15*time.Second, "shorter than what connections of the others can bear")
	for _, p := range busy {
		p.goOn(t)
	}
	goOn(t, x, 0, conns*parts, 2)
	require.Empty(t, x.unasked())
}

// count is how many rounds a connection has made.
func count(t *testing.T, p *actorProcess, id int) (n int) {
	t.Helper()
	p.do(t, "count %d", id)
	_, err := fmt.Sscanf(p.wait(t, 10*time.Second, fmt.Sprint("count ", id, " ")), fmt.Sprint("count ", id, " %d"), &n)
	require.NoError(t, err)
	return n
}

// goOn waits until n connections, the first of them with that number, have made some more rounds each.
func goOn(t *testing.T, p *actorProcess, first, n, rounds int) {
	t.Helper()
	before := make([]int, n)
	for i := range n {
		before[i] = count(t, p, first+i)
	}
	for i := range n {
		require.Eventually(t, func() bool { return count(t, p, first+i) >= before[i]+rounds }, 20*time.Second, 5*time.Millisecond)
	}
}
