// Package interop runs the programs of cmd against peers in C, in a guest whose kernel has Soft-RoCE: those of rdmacm-utils,
// and unmodified programs that librspreload.so turns into peers.
//
// The C peers are in the initial network namespace, where the RDMA devices are. The Go programs are either in another one, at the
// other end of a veth, with the built-in device, or beside the C peers, on the same devices as they.
package interop

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

// world is the guest with all that the tests of this package use.
type world struct {
	g          *vm.Guest
	std, jumbo site   // MTU 1500 and 4200: path MTU 1024 and 4096
	device     string // of the Go programs: softroce or rdmacore
	bin        string // directory of the Go programs, in the guest
	lib        string // gaps.so, in the guest
}

// site is where the two ends of a connection are.
type site struct {
	netns   string // of the Go program
	c, ours vm.Addrs
	name6   string // of ours.V6, for programs that take no such address
}

// on is the world with the Go programs on another device.
func (w *world) on(device string) *world {
	other := *w
	other.device = device
	if device == "rdmacore" {
		for _, s := range []*site{&other.std, &other.jumbo} {
			s.netns, s.ours, s.name6 = "", s.c, "c6"
		}
	}
	return &other
}

var bothDevices = []string{"softroce", "rdmacore"}

// eachDevice runs a test with the Go programs on the built-in device and on that of the kernel.
func eachDevice(t *testing.T, f func(t *testing.T, w *world)) { onDevices(t, bothDevices, f) }

func onDevices(t *testing.T, devices []string, f func(t *testing.T, w *world)) {
	w := theWorld(t)
	for _, device := range devices {
		t.Run(device, func(t *testing.T) { f(t, w.on(device)) })
	}
}

const preload = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"

var worlds struct {
	sync.Mutex
	of  *vm.Guest
	w   *world
	err error
}

// theWorld returns the shared guest, with the programs in its memory: pages of them must not come through 9p in the
// middle of a test.
func theWorld(t *testing.T) *world {
	t.Helper()
	vmtest.Require(t,
		vm.Package{Name: "librdmacm1", File: preload},
		vm.Package{Name: "rdmacm-utils", File: "/usr/bin/rstream"},
		vm.Package{Name: "curl", File: "/usr/bin/curl"},
		vm.Package{Name: "openssl", File: "/usr/bin/openssl"},
		vm.Package{Name: "python3", File: "/usr/bin/python3"},
		vm.Package{Name: "redis-server", File: "/usr/bin/redis-server"},
		vm.Package{Name: "redis-tools", File: "/usr/bin/redis-cli"},
		vm.Package{Name: "memcached", File: "/usr/bin/memcached"},
		vm.Package{Name: "gcc", File: "/usr/bin/gcc"},
		vm.Package{Name: "libc6-dev", File: "/usr/include/stdio.h"},
	)
	g, std := vmtest.SharedPeer(t)
	worlds.Lock()
	defer worlds.Unlock()
	if worlds.of != g {
		worlds.of = g
		worlds.w, worlds.err = newWorld(g, std)
	}
	require.NoError(t, worlds.err)
	return worlds.w
}

func newWorld(g *vm.Guest, std *vm.Peer) (*world, error) {
	ctx := context.Background()
	jumbo, err := g.AddPeer(ctx, "jumbo", 4200)
	if err != nil {
		return nil, err
	}
	w := &world{
		g: g, std: site{std.Netns, std.Near, std.Far, "go6"}, jumbo: site{jumbo.Netns, jumbo.Near, jumbo.Far, ""},
		bin: "/tmp/interop", lib: "/tmp/interop/gaps.so",
	}
	dir := filepath.Join(g.Share, "interop")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	build := append([]string{"build", "-ldflags=-s -w", "-o", dir + "/"}, strings.Fields(os.Getenv("INTEROP_BUILD"))...)
	for _, command := range []*exec.Cmd{
		exec.Command("go", append(build, "./cmd/...")...),
		exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", filepath.Join(dir, "gaps.so"), "gaps/gaps.c", "-ldl"),
	} {
		command.Stderr = os.Stderr
		if err := command.Run(); err != nil {
			return nil, err
		}
	}
	// Names, since rcopy takes no IPv6 address: it cuts its argument at the first colon.
	_, err = g.Script(ctx, `
cp -r /run/share/interop /tmp/
cat >> /etc/hosts <<END
`+std.Far.V6.String()+` go6
`+std.Near.V6.String()+` c6
END`)
	return w, err
}
