package vm_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestDevice(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	out, err := g.Command(t.Context(), "ibv_devinfo", "-v", "-d", p.Near.RDMA).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "PORT_ACTIVE")
	assert.Contains(t, string(out), "::ffff:10.9.0.1, RoCE v2")
	assert.Contains(t, string(out), "fd09::1, RoCE v2")
}

func TestWireToPeer(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	for _, a := range []fmt.Stringer{p.Near.V4, p.Near.V6} {
		out, err := g.Command(t.Context(), "ping", "-c2", "-W30", a.String()).In(p.Netns).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// both runs a server and, once it listens on the port, a client, until both have ended well.
func both(ctx context.Context, t *testing.T, g *vm.Guest, port int, server, client *vm.Cmd) {
	t.Helper()
	var serverOut, clientOut bytes.Buffer
	server.Stdout, server.Stderr = &serverOut, &serverOut
	client.Stdout, client.Stderr = &clientOut, &clientOut
	require.NoError(t, server.Start())
	clientErr := g.WaitListen(ctx, port)
	if clientErr == nil {
		clientErr = client.Run()
	}
	if clientErr != nil {
		_ = server.Kill() // it would wait
	}
	serverErr := server.Wait()
	require.NoError(t, clientErr, "server: %s\nclient: %s", &serverOut, &clientOut)
	require.NoError(t, serverErr, "server: %s\nclient: %s", &serverOut, &clientOut)
}

const rpingPort = 7174 // rping's own choice

func TestRping(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	for _, a := range []fmt.Stringer{p.Near.V4, p.Near.V6} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		both(ctx, t, g, rpingPort, g.Command(ctx, "rping", "-s", "-a", a.String(), "-C3", "-V"),
			g.Command(ctx, "rping", "-c", "-a", a.String(), "-C3", "-V"))
	}
}

// Blocking sends: with others, the client of rstream now and then takes the end of the server for an error.
func TestRstream(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	for i, a := range []fmt.Stringer{p.Near.V4, p.Near.V6} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		args := []string{"-p", strconv.Itoa(7471 + i), "-S", "1000", "-I", "5", "-C", "5", "-T", "b"}
		both(ctx, t, g, 7471+i, g.Command(ctx, "rstream", append(args, "-b", a.String())...),
			g.Command(ctx, "rstream", append(args, "-s", a.String())...))
	}
}

func TestPair(t *testing.T) {
	a, b := vmtest.Pair(t, vm.PairConfig{MTU: 4200})
	for _, to := range []fmt.Stringer{b.Wire.V4, b.Wire.V6} {
		out, err := a.Command(t.Context(), "ping", "-c2", "-W30", "-s4000", "-Mdo", to.String()).CombinedOutput()
		require.NoError(t, err, "%s", out)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		both(ctx, t, b, rpingPort, b.Command(ctx, "rping", "-s", "-a", to.String(), "-C3", "-V"),
			a.Command(ctx, "rping", "-c", "-a", to.String(), "-C3", "-V"))
	}
	out, err := a.Command(t.Context(), "ibv_devinfo", "-d", a.Wire.RDMA).Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "active_mtu:		4096")
}
