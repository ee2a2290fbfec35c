// Package hosts runs the programs of test/interop/cmd between two guests joined by a wire: package rdmanet on the built-in
// device in one, on the kernel's Soft-RoCE under rdma-core in the other.
package hosts

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

const programs = "github.com/go-rdma/rdma/test/interop/"

// share is a directory that both guests see.
var share string

func TestMain(m *testing.M) {
	var err error
	if share, err = os.MkdirTemp("", "rdma-hosts-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := vmtest.Status(m)
	_ = os.RemoveAll(share) // temporary either way
	os.Exit(code)
}

// host is a guest and the device of its programs.
type host struct {
	g      *vm.Guest
	device string
}

func (h host) addr(family string) netip.Addr {
	if family == "IPv4" {
		return h.g.Wire.V4
	}
	return h.g.Wire.V6
}

// theHosts returns the host with the built-in device and the one with the kernel's. MTU 4200 makes packets of 4096 bytes.
func theHosts(t *testing.T) (soft, core host) {
	t.Helper()
	a, b := vmtest.SharedPair(t, vm.PairConfig{Guest: vm.Config{Share: share}, MTU: 4200, NoRDMA: [2]bool{true, false}})
	return host{a, "softroce"}, host{b, "rdmacore"}
}

// run starts one of the programs.
func (h host) run(t *testing.T, name string, args ...string) *vmtest.Process {
	t.Helper()
	return h.start(t, build(t, h.g, name), args...)
}

func (h host) start(t *testing.T, path string, args ...string) *vmtest.Process {
	t.Helper()
	c := h.g.Command(t.Context(), path, args...)
	c.Env = []string{"RDMANET_DEVICE=" + h.device}
	return vmtest.Run(t, c)
}

func build(t *testing.T, g *vm.Guest, name string) string {
	t.Helper()
	path, err := g.Build(t.Context(), programs+"cmd/"+name)
	require.NoError(t, err)
	return path
}

var providerOf = regexp.MustCompile(`"Provider":"(\w+)"`)

// succeeds waits for the end of a program that has printed statistics of this host's device.
func (h host) succeeds(t *testing.T, p *vmtest.Process) string {
	t.Helper()
	out := p.Succeeds()
	found := providerOf.FindAllStringSubmatch(out, -1)
	require.NotEmpty(t, found, out)
	for _, m := range found {
		require.Equal(t, h.device, m[1], out)
	}
	return out
}

// bothRoles runs a test with either host as the server, over either family.
func bothRoles(t *testing.T, f func(t *testing.T, server, client host, family string)) {
	soft, core := theHosts(t)
	for _, r := range [][2]host{{soft, core}, {core, soft}} {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(r[0].device+" serves over "+family, func(t *testing.T) { f(t, r[0], r[1], family) })
		}
	}
}

// TestStream sends bytes both ways that follow from their place in the stream, in messages of several lengths.
func TestStream(t *testing.T) {
	bothRoles(t, func(t *testing.T, server, client host, family string) {
		at := server.addr(family).String()
		for i, r := range []struct{ size, count, turns int }{{4097, 100, 3}, {1, 200, 2}, {300_000, 4, 2}} {
			if i > 0 && !long {
				break
			}
			args := []string{
				"-p", strconv.Itoa(7500 + i), "-v", "-S", strconv.Itoa(r.size), "-C", strconv.Itoa(r.count), "-I", strconv.Itoa(r.turns),
				"-limit", vmtest.Patience.String(),
			}
			s := server.run(t, "rstream", append(args, "-b", at, "-end", "half")...)
			s.Says("listening on")
			c := client.run(t, "rstream", append(args, "-s", at)...)
			want := fmt.Sprintf("custom: %d bytes", 2*r.size*r.count*r.turns)
			assert.Contains(t, client.succeeds(t, c), want)
			assert.Contains(t, server.succeeds(t, s), want)
		}
	})
}

var sumOf = regexp.MustCompile(`: (\d+) bytes in .* sha256 ([0-9a-f]{64})`)

// TestFile copies a file, with its SHA-256 at both ends.
func TestFile(t *testing.T) {
	size := 10_000_000
	if long {
		size = 100_000_000
	}
	bothRoles(t, func(t *testing.T, server, client host, family string) {
		at := server.addr(family).String()
		_, err := client.g.Script(t.Context(), fmt.Sprintf("head -c %d /dev/urandom >/tmp/file", size))
		require.NoError(t, err)
		s := server.run(t, "rcopy", "-once", "-dir", "/tmp", "-b", at)
		s.Says("listening on")
		c := client.run(t, "rcopy", "/tmp/file", "["+at+"]:copy")
		sent, received := sumOf.FindStringSubmatch(client.succeeds(t, c)), sumOf.FindStringSubmatch(server.succeeds(t, s))
		require.NotNil(t, sent)
		require.NotNil(t, received)
		assert.Equal(t, strconv.Itoa(size), sent[1])
		assert.Equal(t, sent[1:], received[1:])
		sum, err := server.g.Script(t.Context(), "sha256sum /tmp/copy")
		require.NoError(t, err)
		assert.True(t, strings.HasPrefix(sum, sent[2]), sum)
	})
}

// TestHTTP is HTTP/1.1, plain and over TLS, and HTTP/2.
func TestHTTP(t *testing.T) {
	soft, core := theHosts(t)
	for _, r := range [][2]host{{soft, core}, {core, soft}} {
		server, client := r[0], r[1]
		t.Run(server.device+" serves", func(t *testing.T) {
			cert := "/run/share/" + server.device + ".pem"
			server.run(t, "httpd", "-addr", ":80").Says("listening on")
			server.run(t, "httpd", "-addr", ":443", "-tls", cert).Says("listening on")
			for _, family := range []string{"IPv4", "IPv6"} {
				at := server.addr(family).String()
				plain, tls := "http://"+net.JoinHostPort(at, "80"), "https://"+net.JoinHostPort(at, "443")
				for _, v := range []struct {
					name, proto string
					bases       []string
				}{
					{"HTTP1 and TLS", "HTTP/1.1", []string{plain, tls}},
					{"HTTP2", "HTTP/2.0", []string{tls}},
				} {
					t.Run(family+" "+v.name, func(t *testing.T) {
						args := []string{"-ca", cert, "-repeat", "2"}
						if v.proto == "HTTP/1.1" {
							args = append(args, "-h1")
						}
						for _, base := range v.bases {
							args = append(args, base+"/size/0=0", base+"/size/1000000=1000000", base+"/chunked/100000=100000", base+"/file/70000=70000")
						}
						out := client.succeeds(t, client.run(t, "httpget", args...))
						assert.Equal(t, 8*len(v.bases), strings.Count(out, v.proto+" 200 OK"), out)
						assert.Equal(t, 7*len(v.bases), strings.Count(out, "reused=true"), out) // one connection for all of a server
						assert.NotContains(t, out, "rdma=false")
					})
				}
			}
			up := client.run(t, "httpget", "-upload", "1000000", "http://"+net.JoinHostPort(server.addr("IPv4").String(), "80")+"/echo=1000000")
			assert.Contains(t, client.succeeds(t, up), "bytes=1000000 ")
		})
	}
}

// TestNettest is package nettest's suite of connections. It wants both ends in one process, so a relay on the other host
// joins two connections: one that this host has made, and one that the other has made.
func TestNettest(t *testing.T) {
	soft, core := theHosts(t)
	for _, c := range []struct {
		near, far host
		family    string
		always    bool
	}{
		{soft, core, "IPv4", true}, {core, soft, "IPv6", true}, {soft, core, "IPv6", false}, {core, soft, "IPv4", false},
	} {
		if !c.always && !long {
			continue
		}
		t.Run(c.near.device+" over "+c.family, func(t *testing.T) {
			prog, err := c.near.g.BuildTest(t.Context(), programs+"hosts/guest", "-tags=guest")
			require.NoError(t, err)
			at := net.JoinHostPort(c.near.addr(c.family).String(), "7001")
			relay := net.JoinHostPort(c.far.addr(c.family).String(), "7000")
			c.far.run(t, "relay", "-addr", relay, "-to", at).Says("listening on")
			out := c.near.start(t, prog, "-test.v", "-test.timeout", vmtest.Patience.String(), "-listen", at, "-relay", relay).Succeeds()
			assert.Equal(t, 1, strings.Count(out, "--- PASS: TestConn "), out)
			assert.Greater(t, strings.Count(out, "    --- PASS: TestConn/"), 10, out)
			assert.NotContains(t, out, "--- SKIP")
		})
	}
}
