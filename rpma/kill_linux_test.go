package rpma_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

const roleEnv = "RPMA_TEST_SERVER"

// TestServerProcess is the other process of TestKilled.
func TestServerProcess(t *testing.T) {
	if os.Getenv(roleEnv) == "" {
		t.Skip("run by TestKilled")
	}
	p := newPeer(t)
	ep, err := p.Listen(localAny)
	require.NoError(t, err)
	fmt.Println("listening on", ep.Addr())
	for {
		r, err := ep.Accept(t.Context(), nil)
		require.NoError(t, err)
		_, err = r.Connect(t.Context(), nil)
		require.NoError(t, err)
	}
}

// TestKilled: a peer's process that is killed is noticed at once, also by who waits for something else.
func TestKilled(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestServerProcess$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), roleEnv+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var addr string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var ok bool
		if addr, ok = strings.CutPrefix(lines.Text(), "listening on "); ok {
			break
		}
	}
	p := newPeer(t)
	var conns []*rpma.Conn
	for range 4 {
		c, err := p.Dial(t.Context(), addr, nil)
		require.NoError(t, err)
		defer c.Close()
		conns = append(conns, c)
	}
	waits := make(chan error, 2)
	go func() { waits <- conns[0].Do(t.Context(), rpma.Send(rpma.Local{})) }() // which meets no receive
	go func() { waits <- conns[1].CQ().Wait(t.Context()) }()
	time.Sleep(20 * time.Millisecond)
	gone := error(syscall.ECONNRESET)
	if os.Getenv("RDMANET_DEVICE") == "rdmacore" {
		gone = io.EOF // the kernel says goodbye for the process
	}
	start := time.Now()
	require.NoError(t, cmd.Process.Kill())
	for i, c := range conns {
		select {
		case <-c.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("not noticed")
		}
		require.ErrorIs(t, c.Err(), gone, "%d", i)
	}
	for range 2 {
		err := <-waits
		require.ErrorIs(t, err, gone)
	}
	require.Less(t, time.Since(start), 5*time.Second)
}
