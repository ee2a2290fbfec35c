package interop

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// A run of rstream. Go checks each byte that the protocol determines; with -T v C does, too.
type rstreamRun struct {
	size, count, iters int
	c                  []string // options of the C program only
	goOnly             []string // options of the Go program only
	verify             bool
	v6                 bool
}

func (r rstreamRun) String() string {
	s := fmt.Sprintf("S=%d,C=%d,I=%d", r.size, r.count, r.iters)
	for _, o := range append(append([]string{}, r.c...), r.goOnly...) {
		s += "," + o
	}
	if r.verify {
		s += ",verify"
	}
	if r.v6 {
		s += ",v6"
	}
	return s
}

// rstreamRuns are all runs, kind by kind. Runs on a device of the kernel take the first of each kind, unless it is to be the full measure.
var rstreamRuns = [][]rstreamRun{{
	// the ways in which C reads and writes, and Go
	{size: 1000, count: 50, iters: 4, verify: true},
	{size: 1000, count: 50, iters: 4, verify: true, c: []string{"-T", "b"}, goOnly: []string{"-style", "pieces"}},
	{size: 1000, count: 50, iters: 4, verify: true, c: []string{"-T", "a"}, goOnly: []string{"-style", "vector"}, v6: true},
	{size: 5000, count: 10, iters: 4, verify: true, c: []string{"-T", "a", "-T", "b"}, v6: true},
	{size: 5000, count: 10, iters: 4, verify: true, c: []string{"-T", "b", "-T", "r"}},
	{size: 5000, count: 10, iters: 4, c: []string{"-T", "b"}}, // what is sent are the bytes received last
}, {
	// one byte, less than the 64 that C sends inline, and around that
	{size: 1, count: 200, iters: 2, verify: true, c: []string{"-T", "b"}},
	{size: 63, count: 100, iters: 2, verify: true, c: []string{"-T", "b"}, v6: true},
	{size: 65, count: 100, iters: 2, verify: true, c: []string{"-T", "b"}},
}, {
	// more messages than the 384 of C's queue, one way and then the other
	{size: 10, count: 1000, iters: 2, verify: true, c: []string{"-T", "b"}},
	// latency: a turn for each message
	{size: 64, count: 1, iters: 300, verify: true, c: []string{"-T", "b"}},
}, {
	// around the first segment of Go's ring, and the halves of C's
	{size: 16384, count: 6, iters: 2, verify: true, c: []string{"-T", "b"}},
	{size: 16385, count: 6, iters: 2, verify: true, c: []string{"-T", "b"}, v6: true},
	{size: 65536, count: 4, iters: 2, verify: true, c: []string{"-T", "b"}},
	{size: 65535, count: 4, iters: 2, verify: true, c: []string{"-T", "b"}, v6: true},
	{size: 524288, count: 1, iters: 2, verify: true, c: []string{"-T", "b"}},
	{size: 524289, count: 2, iters: 1, verify: true, c: []string{"-T", "b"}, goOnly: []string{"-style", "pieces"}},
	{size: 1500000, count: 1, iters: 1, c: []string{"-T", "b"}, goOnly: []string{"-style", "vector"}, v6: true},
}, {
	// small rings in C: a descriptor every 2 KiB, and sizes that do not divide
	{size: 10000, count: 10, iters: 2, verify: true, c: []string{"-T", "b", "-B", "2048"}},
	{size: 4097, count: 20, iters: 2, verify: true, c: []string{"-T", "b", "-B", "2049"}, v6: true},
	{size: 30000, count: 5, iters: 2, verify: true, c: []string{"-T", "b", "-B", "16384"}},
	// and in Go
	{size: 30000, count: 5, iters: 2, verify: true, c: []string{"-T", "b"}, goOnly: []string{"-B", "4096"}},
	{size: 30000, count: 5, iters: 2, verify: true, c: []string{"-T", "b", "-B", "4096"}, goOnly: []string{"-B", "4096", "-style", "pieces"}},
}, {
	// how C posts
	{size: 200, count: 50, iters: 2, verify: true, c: []string{"-T", "b", "-i", "0"}},
	{size: 200, count: 50, iters: 2, verify: true, c: []string{"-T", "b", "-i", "200"}},
}, {
	// keep-alive, ways to end
	{size: 3000, count: 20, iters: 4, verify: true, c: []string{"-T", "b", "-k", "1"}, goOnly: []string{"-k", "1s"}},
	{size: 3000, count: 5, iters: 2, verify: true, c: []string{"-T", "b"}, goOnly: []string{"-end", "half"}},
	{size: 3000, count: 5, iters: 2, verify: true, c: []string{"-T", "b"}, goOnly: []string{"-end", "close"}},
}}

func TestRstreamServerInC(t *testing.T) { allRstream(t, true) }

func TestRstreamServerInGo(t *testing.T) { allRstream(t, false) }

func allRstream(t *testing.T, cServes bool) {
	eachDevice(t, func(t *testing.T, w *world) {
		for _, kind := range rstreamRuns {
			if w.device != "softroce" && !long {
				kind = kind[:1]
			}
			for _, r := range kind {
				t.Run(r.String(), func(t *testing.T) { r.run(t, w, cServes) })
			}
		}
	})
}

func (r rstreamRun) run(t *testing.T, w *world, cServes bool) {
	same := []string{"-S", strconv.Itoa(r.size), "-C", strconv.Itoa(r.count), "-I", strconv.Itoa(r.iters)}
	cArgs := append(append([]string{"rstream"}, same...), r.c...)
	goArgs := append(append([]string{"rstream", "-limit", vmtest.Patience.String()}, same...), r.goOnly...)
	if r.verify {
		cArgs, goArgs = append(cArgs, "-T", "v"), append(goArgs, "-v")
	}
	near, far := w.std.c.V4, w.std.ours.V4
	if r.v6 {
		near, far = w.std.c.V6, w.std.ours.V6
	}
	var inC, inGo *proc
	if cServes {
		inC = w.rstreamServer(t, near, cArgs)
		inGo = w.goAt(t, w.std, append(goArgs, "-s", near.String())...)
	} else {
		inGo = w.goAt(t, w.std, append(goArgs, "-b", far.String())...)
		inGo.Says("listening on")
		inC = w.c(t, nil, append(cArgs, "-s", far.String())...)
	}
	out := inGo.Succeeds()
	checkRstream(t, inC.Succeeds())
	assert.Contains(t, out, fmt.Sprintf("custom: %d bytes", 2*r.size*r.count*r.iters))
	for name, want := range map[string]int{
		"BytesRead": r.size*r.count*r.iters + 16, "BytesWritten": r.size*r.count*r.iters + 16,
		"RNRs": 0, // C had a receive for whatever was sent
	} {
		assert.Equal(t, want, stat(t, out, name), name)
	}
	if !strings.Contains(strings.Join(r.goOnly, " "), "-end close") {
		assert.Contains(t, out, "end after") // io.EOF, nothing else
	}
}

// rstreamServer starts the C program as a server and waits until it listens.
func (w *world) rstreamServer(t *testing.T, addr netip.Addr, args []string) *proc {
	t.Helper()
	p := w.c(t, nil, append(args, "-b", addr.String())...)
	p.Says("usec/xfer") // the head of its table
	return p
}

// checkRstream reads what the C program wrote: it ends with status 0 after most failures, and even after the stream's early end, but
// writes a line of its table only behind a whole test.
func checkRstream(t *testing.T, out string) {
	t.Helper()
	assert.NotContains(t, out, "rrecv")
	assert.NotContains(t, out, "rsend")
	assert.NotContains(t, out, "verification failed")
	assert.Regexp(t, `(?m)^custom .*s +[0-9.]+ +[0-9.]+$`, out)
}

var statLine = regexp.MustCompile(`(?m)^stats \{.*$`)

// stat reads a number out of the last line of statistics.
func stat(t *testing.T, out, name string) int {
	t.Helper()
	lines := statLine.FindAllString(out, -1)
	require.NotEmpty(t, lines, out)
	m := regexp.MustCompile(`"?` + name + `"?:(\d+)`).FindStringSubmatch(lines[len(lines)-1])
	require.NotNil(t, m, "no %s in %s", name, lines[len(lines)-1])
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}
