package rpma_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

const (
	clientEnv      = "RPMA_TEST_CLIENT"
	clientMessages = 60
)

// TestClientProcess is a client of TestClientProcesses: it sends numbered messages to the address that it is told, with its own number in them.
func TestClientProcess(t *testing.T) {
	var number uint32
	var addr string
	if _, err := fmt.Sscan(os.Getenv(clientEnv), &number, &addr); err != nil {
		t.Skip("run by TestClientProcesses")
	}
	p := newPeer(t)
	m := alloc(t, p, 8, rpma.SendBuf)
	c, err := p.Dial(t.Context(), addr, nil)
	require.NoError(t, err)
	for i := range uint32(clientMessages) {
		binary.BigEndian.PutUint32(m.Bytes(), number)
		binary.BigEndian.PutUint32(m.Bytes()[4:], i)
		require.NoError(t, c.Do(t.Context(), rpma.Send(m.Slice(0, 8))))
	}
	require.NoError(t, c.Close())
}

// TestClientProcesses: a server takes the messages of several client processes from one shared receive queue, with one completion queue. One that is
// killed takes nothing from the others.
func TestClientProcesses(t *testing.T) {
	const clients, depth = 3, 8 // and one that is killed
	p := newPeer(t)
	srq, err := p.NewSRQ(&rpma.SRQConfig{RQSize: depth, RCQSize: 4 * depth})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	m := alloc(t, p, depth*8, rpma.RecvBuf)
	for i := range depth {
		require.NoError(t, srq.PostRecv(m.Slice(i*8, 8), uint64(i)))
	}
	ep, err := p.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		for range clients + 1 {
			r, err := ep.Accept(ctx, &rpma.ConnConfig{SRQ: srq})
			if err != nil {
				served <- err
				return
			}
			c, err := r.Connect(ctx, nil)
			if err != nil {
				served <- err
				return
			}
			t.Cleanup(func() { assert.NoError(t, c.Close()) })
		}
		served <- nil
	}()
	var cmds []*exec.Cmd
	for i := range clients + 1 {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestClientProcess$", "-test.timeout=1m")
		cmd.Env = append(os.Environ(), clientEnv+"="+strconv.Itoa(i)+" "+ep.Addr().String())
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		cmds = append(cmds, cmd)
	}
	var next [clients + 1]uint32
	killed := false
	for done := 0; done < clients; {
		for wc, err := range srq.CQ().Completions(ctx) {
			require.NoError(t, err)
			if wc.Err() == nil {
				b := m.Bytes()[wc.ID*8:][:8]
				from, i := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
				require.Less(t, from, uint32(clients+1))
				require.Equal(t, next[from], i, "client %d", from)
				next[from]++
				if from < clients && next[from] == clientMessages {
					done++
				}
			}
			require.NoError(t, srq.PostRecv(m.Slice(int(wc.ID)*8, 8), wc.ID))
			break
		}
		if !killed && next[clients] > 5 {
			killed = true
			require.NoError(t, cmds[clients].Process.Kill())
		}
	}
	require.NoError(t, <-served)
	_ = cmds[clients].Process.Kill()
	for i, cmd := range cmds {
		if err := cmd.Wait(); i < clients {
			require.NoError(t, err, "client %d", i)
		}
	}
}
