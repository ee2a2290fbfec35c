// Package loss_test lets streams cross a network that the kernel makes bad (tc-netem(8)), in a
// guest: from softroce to softroce, and between softroce and Soft-RoCE under librdmacm.
//
// Where a sender hands the kernel several packets at once (UDP_SEGMENT), netem loses, delays and repeats
// all of them together, but for those it corrupts: it then takes them apart.
package loss_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

const programs = "github.com/go-rdma/rdma/test/interop/cmd/"

// end is one end of a bad network.
type end struct {
	netns, dev, addr string
}

// line is a network between two ends.
type line struct {
	t    *testing.T
	g    *vm.Guest
	a, b end
}

// spoil makes netem do something to what either end sends, until clear.
func (l *line) spoil(how string) {
	l.t.Helper()
	for _, e := range []end{l.a, l.b} {
		l.tc(e, "replace", append([]string{"root", "netem", "limit", "10000"}, strings.Fields(how)...)...)
	}
}

func (l *line) clear() {
	for _, e := range []end{l.a, l.b} {
		l.tc(e, "del", "root")
	}
}

func (l *line) tc(e end, verb string, args ...string) string {
	l.t.Helper()
	out, err := l.g.Command(context.Background(), "tc", append([]string{"-s", "qdisc", verb, "dev", e.dev}, args...)...).In(e.netns).CombinedOutput()
	require.NoError(l.t, err, "%s", out)
	return string(out)
}

var droppedRE = regexp.MustCompile(`dropped (\d+)`)

// dropped is how many packets netem has lost so far.
func (l *line) dropped() (n int) {
	l.t.Helper()
	for _, e := range []end{l.a, l.b} {
		m := droppedRE.FindStringSubmatch(l.tc(e, "show"))
		require.NotNil(l.t, m)
		k, err := strconv.Atoi(m[1])
		require.NoError(l.t, err)
		n += k
	}
	return n
}

// twoNamespaces is a line between two namespaces without Soft-RoCE. The addresses are such as
// the certificate of httpd has.
func twoNamespaces(t *testing.T) *line {
	l := &line{t: t, g: vmtest.Shared(t), a: end{"lossa", "la", "10.9.1.1"}, b: end{"lossb", "lb", "10.9.1.2"}}
	_, err := l.g.Script(t.Context(), `set -e
ip netns add lossa
ip netns add lossb
ip link add la netns lossa type veth peer name lb netns lossb
for e in a:1 b:2; do
	ns=loss${e%:*} dev=l${e%:*}
	ip -n $ns addr add 10.9.1.${e#*:}/24 dev $dev
	ip -n $ns link set lo up
	ip -n $ns link set $dev up
done`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := l.g.Script(context.Background(), "ip netns del lossa; ip netns del lossb")
		require.NoError(t, err)
	})
	return l
}

// toSoftRoCE is a line from the kernel's Soft-RoCE to a namespace without.
func toSoftRoCE(t *testing.T) *line {
	g, p := vmtest.SharedPeer(t)
	return &line{
		t: t, g: g, a: end{"", p.Near.Interface, p.Near.V4.String()}, b: end{p.Netns, p.Far.Interface, p.Far.V4.String()},
	}
}

func build(t *testing.T, g *vm.Guest, name string) string {
	t.Helper()
	path, err := g.Build(t.Context(), programs+name)
	require.NoError(t, err)
	return path
}

// ours runs one of our programs at an end, on softroce: where the kernel has a device, it is not used unasked.
func (l *line) ours(ctx context.Context, e end, name string, args ...string) *vm.Cmd {
	c := l.g.Command(ctx, name, args...).In(e.netns)
	c.Env = []string{"RDMANET_DEVICE=softroce"}
	return c
}

// lockedBuffer is output that is looked at while it comes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a server until the test ends, and waits until it says that it listens.
func start(t *testing.T, c *vm.Cmd, ready string) (out *lockedBuffer) {
	t.Helper()
	out = new(lockedBuffer)
	c.Stdout, c.Stderr = out, out
	require.NoError(t, c.Start())
	ended := make(chan struct{})
	go func() {
		_ = c.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = c.Kill() // it may have ended
		<-ended
	})
	for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), ready); {
		require.Less(t, time.Now(), end, "%s does not listen: %s", c, out)
		time.Sleep(50 * time.Millisecond)
	}
	return out
}

// file makes a file of n bytes that both sides of the guest see, and returns its name in the guest, and its checksum.
func file(t *testing.T, g *vm.Guest, n int) (guest, sum string) {
	t.Helper()
	b := make([]byte, n)
	_, err := rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(g.Share, "sent"), b, 0o600))
	return g.SharePath("sent"), fmt.Sprintf("%x", sha256.Sum256(b))
}

func sumOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// networks are what netem does. The requester of rdma_rxe in Linux 6.1 cannot stand what jitter does to the order of
// packets: from C to C, over two guests, rcopy got 256 KiB through a delay of 2 ms and a reordering of 5 % in 0.1 s, but not within a
// minute once 1 ms of jitter was added, for which it sent 15 times as many packets as there were. It gets networks without jitter.
var networks = []struct {
	name, how, fromC string
	loses            bool
}{
	{"loss 1%", "loss 1%", "", true},
	{"loss 5%", "loss 5%", "", true},
	{"delay and reorder", "delay 2ms 1ms reorder 25% 50%", "delay 2ms reorder 5% 50%", false},
	{"everything", "delay 1ms 1ms loss 2% duplicate 2% corrupt 1%", "delay 1ms loss 2% duplicate 2% corrupt 1% reorder 2% 50%", true},
}

// TestSoftroceToSoftroce: HTTP, plain and over TLS, up and down, with checksums.
func TestSoftroceToSoftroce(t *testing.T) {
	size := 1 << 20
	if long {
		size = 64 << 20
	}
	l := twoNamespaces(t)
	httpd, httpget := build(t, l.g, "httpd"), build(t, l.g, "httpget")
	cert := l.g.SharePath("loss.pem")
	start(t, l.ours(t.Context(), l.b, httpd, "-addr", l.b.addr+":80"), "listening")
	start(t, l.ours(t.Context(), l.b, httpd, "-addr", l.b.addr+":443", "-tls", cert), "listening")
	for i, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			l := &line{t, l.g, l.a, l.b}
			l.spoil(n.how)
			defer l.clear()
			urls := []string{"http://" + l.b.addr, "https://" + l.b.addr}
			if !long {
				urls = urls[i%2 : i%2+1] // a program takes seconds to start in a guest
			}
			for _, url := range urls {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				get := func(args ...string) string {
					args = append([]string{"-ca", cert}, args...)
					out, err := l.ours(ctx, l.a, httpget, args...).CombinedOutput()
					require.NoError(t, err, "%s", out)
					return string(out)
				}
				out := get(fmt.Sprintf("%s/size/%d=%d", url, size, size))
				t.Log(strings.Fields(out)[:7])
				get("-conc", "4", "-repeat", "2", url+"/chunked/10000=10000")
				out = get("-upload", strconv.Itoa(size), url+"/echo="+strconv.Itoa(size))
				assert.Contains(t, out, "bytes="+strconv.Itoa(size))
			}
			if n.loses {
				assert.Positive(t, l.dropped())
			}
		})
	}
}

// TestAgainstSoftRoCE: rcopy of librdmacm sends files to ours, and ours to it.
func TestAgainstSoftRoCE(t *testing.T) {
	size := 256 << 10
	if long {
		size = 16 << 20
	}
	l := toSoftRoCE(t)
	rcopy := build(t, l.g, "rcopy")
	sent, sum := file(t, l.g, size)
	for i, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			l := &line{t, l.g, l.a, l.b}
			l.spoil(n.how)
			defer l.clear()
			t.Run("from C", func(t *testing.T) {
				if n.fromC != "" {
					l.spoil(n.fromC)
					defer l.spoil(n.how)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				port := strconv.Itoa(7500 + i)
				out := start(t, l.ours(ctx, l.b, rcopy, "-p", port, "-dir", l.g.SharePath(""), "-b", l.b.addr), "listening")
				// Options first would make it a server.
				c, err := l.g.Command(ctx, "rcopy", sent, l.b.addr+":got-from-c", "-p", port).CombinedOutput()
				require.NoError(t, err, "client: %s\nserver: %s", c, out)
				require.Equal(t, sum, sumOf(t, filepath.Join(l.g.Share, "got-from-c")))
				t.Logf("%s%s", c, out)
			})
			t.Run("to C", func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				port := strconv.Itoa(7600 + i)
				server := l.g.Command(ctx, "stdbuf", "-o0", "rcopy", "-p", port)
				server.Dir = l.g.SharePath("")
				out := start(t, server, "")
				c, err := l.ours(ctx, l.b, rcopy, "-p", port, sent, l.a.addr+":got-from-go").CombinedOutput()
				require.NoError(t, err, "client: %s\nserver: %s", c, out)
				require.Equal(t, sum, sumOf(t, filepath.Join(l.g.Share, "got-from-go")))
				t.Logf("%s%s", c, out)
			})
			if n.loses {
				assert.Positive(t, l.dropped())
			}
		})
	}
}
