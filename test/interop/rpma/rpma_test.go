// Package rpma runs programs on librpma, in c, against programs on package rpma, in cmd/rpmapeer, in a guest with Soft-RoCE. Both
// ends of a scenario have its name, and say the same in both languages.
package rpma

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// end is where programs of one kind run.
type end struct {
	name  string
	g     *vm.Guest
	prog  string
	netns string
	addr  string // of its servers
	env   []string
	mute  bool // the device is the process: the kernel says nothing where that is not, or is no more
}

func (e *end) start(t *testing.T, scenario, role, addr string, port int) *vmtest.Process {
	t.Helper()
	c := e.g.Command(t.Context(), e.prog, scenario, role, addr, strconv.Itoa(port)).In(e.netns)
	c.Env = e.env
	return vmtest.Run(t, c)
}

// scenario is a program of both ends.
type scenario struct {
	name    string
	serves  []string // what the server says
	dials   []string // what the client says
	noAdmit bool     // there is no server
}

var scenarios = []scenario{
	{name: "connect", serves: []string{"from the client (56 bytes)"}, dials: []string{"from the server (196 bytes)"}},
	{name: "nodata", serves: []string{" (56 bytes)"}, dials: []string{" (196 bytes)"}},
	{name: "read", dials: []string{"read 100001 bytes"}},
	{name: "write", serves: []string{"1000 bytes with 0xa1b2c3d4", "0 bytes with 0x7"}, dials: []string{"wrote 100001 bytes"}},
	{name: "flush", serves: []string{"flushed"}, dials: []string{"flushed"}},
	{name: "noflush", dials: []string{"not persistent"}},
	{name: "atomic", serves: []string{"log: alphabetagammadelta"}, dials: []string{"used: 19"}},
	{name: "access", serves: []string{"unharmed"}, dials: []string{"refused"}},
	{name: "send", serves: []string{"7 messages"}, dials: []string{"7 messages"}},
	{name: "rcq", serves: []string{"7 messages"}, dials: []string{"7 messages"}},
	{name: "shared", serves: []string{"7 messages"}, dials: []string{"7 messages"}},
	{name: "srq", serves: []string{"5 + 5 rounds"}, dials: []string{"5 + 5 rounds"}},
	{name: "srqmain", serves: []string{"5 + 5 rounds"}, dials: []string{"5 + 5 rounds"}},
	{name: "srqrcq", serves: []string{"5 + 5 rounds"}, dials: []string{"5 + 5 rounds"}},
	{name: "reject", dials: []string{"rejected"}},
	{name: "nobody", dials: []string{"rejected"}, noAdmit: true},
}

var ports atomic.Int32

func nextPort() int { return 7300 + int(ports.Add(1)) }

// testScenarios runs all of them with these two ends.
func testScenarios(t *testing.T, server, client *end) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			port := nextPort()
			var srv *vmtest.Process
			switch {
			case s.noAdmit && server.mute: // nobody is there at all without a process, which C notices after 102 s
				server.start(t, "deaf", "serve", server.addr, nextPort()).Says("listening")
			case !s.noAdmit:
				srv = server.start(t, s.name, "serve", server.addr, port)
				srv.Says("listening")
			}
			cli := client.start(t, s.name, "dial", server.addr, port)
			assertSays(t, cli.Succeeds(), s.dials)
			if srv != nil {
				assertSays(t, srv.Succeeds(), append([]string{"listening"}, s.serves...))
			}
		})
	}
}

// testEnds is about peers that are killed, or that do nothing.
func testEnds(t *testing.T, server, client *end) {
	if !server.mute {
		t.Run("killed server", func(t *testing.T) {
			srv, cli := ready(t, server, client, "killed")
			cli.Says("ready")
			srv.Kill()
			assertSays(t, cli.Succeeds(), []string{"ready", "closed"})
		})
	}
	if !client.mute {
		t.Run("killed client", func(t *testing.T) {
			srv, cli := ready(t, server, client, "killed")
			cli.Says("ready")
			srv.Says("ready")
			cli.Kill()
			assertSays(t, srv.Succeeds(), []string{"listening", "ready", "closed"})
		})
	}
	t.Run("silent server", func(t *testing.T) { // that does not answer the end of a connection
		srv, cli := ready(t, server, client, "silent")
		assertSays(t, cli.Succeeds(), []string{"left"})
		srv.Kill()
	})
	t.Run("deaf server", func(t *testing.T) { // that takes no request
		srv, cli := ready(t, server, client, "deaf")
		assertSays(t, cli.Succeeds(), []string{"gave up"})
		srv.Kill()
	})
}

func ready(t *testing.T, server, client *end, name string) (srv, cli *vmtest.Process) {
	t.Helper()
	port := nextPort()
	srv = server.start(t, name, "serve", server.addr, port)
	srv.Says("listening")
	return srv, client.start(t, name, "dial", server.addr, port)
}

func assertSays(t *testing.T, out string, lines []string) {
	t.Helper()
	var said []string
	for l := range strings.Lines(out) {
		if !strings.Contains(l, " *ERROR* ") { // librpma's log, of failures that were to come
			said = append(said, strings.TrimSuffix(l, "\n"))
		}
	}
	assert.Equal(t, append(lines[:len(lines):len(lines)], "done"), said)
}

var worlds struct {
	sync.Mutex
	of  *vm.Guest
	c   *end
	err error
}

// cPeer is the end that is in C, on rxe0.
func cPeer(t *testing.T) (*end, *vm.Peer) {
	t.Helper()
	vmtest.Require(t,
		vm.Package{Name: "librpma-dev", File: "/usr/include/librpma.h"},
		vm.Package{Name: "librpma0", File: "/usr/lib/*/librpma.so.0"},
		vm.Package{Name: "libibverbs-dev", File: "/usr/include/infiniband/verbs.h"},
		vm.Package{Name: "librdmacm-dev", File: "/usr/include/rdma/rdma_cma.h"},
		vm.Package{Name: "gcc", File: "/usr/bin/gcc"},
		vm.Package{Name: "libc6-dev", File: "/usr/include/stdio.h"},
	)
	g, p := vmtest.SharedPeer(t)
	worlds.Lock()
	defer worlds.Unlock()
	if worlds.of != g {
		worlds.of = g
		worlds.c = &end{name: "C", g: g, prog: "/run/share/rpmac", addr: p.Near.V4.String()}
		worlds.err = buildC(filepath.Join(g.Share, "rpmac"))
	}
	require.NoError(t, worlds.err)
	return worlds.c, p
}

func buildC(path string) error {
	sources, err := filepath.Glob("c/*.c")
	if err != nil {
		return err
	}
	args := append([]string{"-O2", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-o", path}, sources...)
	c := exec.CommandContext(context.Background(), "gcc", append(args, "-lrpma", "-libverbs")...)
	c.Stderr = os.Stderr
	return c.Run()
}

// TestCToC: the programs do what they are for, so that what fails against Go is Go's.
func TestCToC(t *testing.T) {
	c, _ := cPeer(t)
	testScenarios(t, c, c)
	testEnds(t, c, c)
}

// goPeers are the ends in Go: with the embedded device in another namespace, and beside the C peers on their device.
func goPeers(t *testing.T, g *vm.Guest, p *vm.Peer) []*end {
	t.Helper()
	prog, err := g.Build(t.Context(), "github.com/go-rdma/rdma/test/interop/rpma/cmd/rpmapeer", strings.Fields(os.Getenv("INTEROP_BUILD"))...)
	require.NoError(t, err)
	return []*end{
		{name: "softroce", g: g, prog: prog, netns: p.Netns, addr: p.Far.V4.String(), env: []string{"RDMANET_DEVICE=softroce"}, mute: true},
		{name: "rdmacore", g: g, prog: prog, addr: p.Near.V4.String(), env: []string{"RDMANET_DEVICE=rdmacore"}},
	}
}

// TestGoToC and TestCToGo: a client in Go and a server in C, and the other way round.
func TestGoToC(t *testing.T) {
	c, p := cPeer(t)
	for _, ours := range goPeers(t, c.g, p) {
		t.Run(ours.name, func(t *testing.T) {
			testScenarios(t, c, ours)
			testEnds(t, c, ours)
		})
	}
}

func TestCToGo(t *testing.T) {
	c, p := cPeer(t)
	for _, ours := range goPeers(t, c.g, p) {
		t.Run(ours.name, func(t *testing.T) {
			testScenarios(t, ours, c)
			testEnds(t, ours, c)
		})
	}
}
