package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-peer") || slices.Contains(os.Args, "-load") { // as this binary calls itself
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFigures(t *testing.T) {
	for _, x := range []struct{ got, want any }{
		{micros(1500 * time.Nanosecond), 1.5},
		{mibPerSecond(64 << 10)(time.Millisecond), 62.5},
		{lessIsFaster(1, 2), 2.0},
		{moreIsFaster(1, 2), 0.5},
		{sizeName(64), "64 B"},
		{sizeName(8 << 10), "8 KiB"},
		{sizeName(1 << 20), "1 MiB"},
		{latency(0), "-"},
		{latency(1500 * time.Nanosecond), "1.50 µs"},
		{latency(15 * time.Millisecond), "15.0 ms"},
		{latency(2 * time.Second), "2.00 s"},
	} {
		if x.got != x.want {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
}

func testOptions(run string) *options {
	re := regexp.MustCompile(run)
	return &options{
		device: "softroce", rounds: 2, sample: 2 * time.Millisecond,
		pick: func(name string, _ bool) bool { return re.MatchString(name) },
	}
}

func TestPicking(t *testing.T) {
	names := func(ss []side, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range ss {
			all = append(all, s.name)
		}
		return strings.Join(all, "; ")
	}
	o := testOptions(".")
	oneOfEach := []string{sideTCP, sideRDMA, sideQUIC}
	if got := names(o.picked(oneOfEach)); got != "TCP; RDMA; QUIC" {
		t.Error(got)
	}
	o.sides = regexp.MustCompile("TCP|spin")
	if got := names(o.picked(oneOfEach)); got != "TCP; RDMA, spinning; shared memory, spinning" {
		t.Error(got)
	}
	o.sides = regexp.MustCompile("pigeon")
	if _, err := o.picked(oneOfEach); err == nil {
		t.Error("a side of that name")
	}

	pick, err := picker("")
	if err != nil || !pick("64 B round trip", true) || pick("idle, RDMA", false) {
		t.Errorf("without -run: %v", err)
	}
	pick, err = picker("idle")
	if err != nil || pick("64 B round trip", true) || !pick("idle, RDMA", false) {
		t.Errorf("-run idle: %v", err)
	}
	if _, err = picker("("); err == nil {
		t.Error("that is no regexp")
	}
}

// checkReport looks at what a run writes: as many lines of tables as there are figures, and plots that are there.
func checkReport(t *testing.T, r *results, lines int) {
	t.Helper()
	dir := t.TempDir()
	name, err := r.write(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if n := strings.Count(text, "\n| "); n != lines {
		t.Errorf("%d lines of table, want %d:\n%s", n, lines, text)
	}
	svgs, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text, "!["); n != len(svgs) {
		t.Errorf("%d plots in the text, %d files", n, len(svgs))
	}
	for _, svg := range svgs {
		b, err := os.ReadFile(svg)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(b); !strings.HasPrefix(s, "<?xml") || !strings.Contains(s, "</svg>") || !strings.Contains(text, filepath.Base(svg)) {
			t.Errorf("%s is no plot of the text's: %.100s", svg, s)
		}
	}
	if r.path != "" && !strings.Contains(r.path, "softroce") {
		t.Errorf("carried by %q", r.path)
	}
}

// TestCases runs every case in both arrangements, too briefly to mean anything.
func TestCases(t *testing.T) {
	t.Setenv("PATH", "") // no UCX, which does not get on with what else runs here
	r := &results{machine: describeMachine(), o: testOptions(".")}
	lines := 1 // the heading
	for _, processes := range []int{2, 1} {
		if err := r.measureCases(t.Context(), processes); err != nil {
			t.Fatal(err)
		}
		for i := range cases {
			if c := &cases[i]; !c.busy || processes == 2 {
				lines += len(c.sides)
				if slices.Contains(c.sides, sideUCX) {
					lines--
				}
			}
		}
	}
	for _, x := range r.rows {
		for _, s := range x.sides {
			if len(s.figures) != r.o.rounds || slices.Min(s.figures) <= 0 || slices.Min(s.cpu) <= 0 {
				t.Errorf("%s, %d process(es), %s: %v, %v s", x.c.name, x.processes, s.side, s.figures, s.cpu)
			}
		}
	}
	checkReport(t, r, lines)
}

func TestUCXOutput(t *testing.T) {
	const out = `+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |       overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                      100000      0.606    75.875    91.097        0.80       0.67       13179       10977
`
	if d, err := ucxOverall([]byte(out)); err != nil || d != 91097*time.Nanosecond {
		t.Error(d, err)
	}
	for _, bad := range []string{"", out + "Segmentation fault", out + "1 2 3 -4 5 6 7 8"} {
		if _, err := ucxOverall([]byte(bad)); err == nil {
			t.Errorf("taken: %q", lastLine([]byte(bad)))
		}
	}
}

// TestGrid runs cells of HTTP/1.1, of HTTP/2 and of gRPC.
func TestGrid(t *testing.T) {
	r := &results{machine: describeMachine(), o: testOptions("grid (1x1x64 B|8x8x8 KiB|1x8x1 MiB|gRPC (1x1x64 B|8x8x8 KiB|1x8x1 MiB))$")}
	if err := r.measureGrid(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.grid) != 6 {
		t.Fatalf("%d cells", len(r.grid))
	}
	for _, x := range r.grid {
		for k := range x.sides {
			s := &x.sides[k]
			if len(s.requests) != r.o.rounds || slices.Min(s.requests) <= 0 || slices.Min(s.cpu) <= 0 {
				t.Errorf("%s, %s: %v, %v s", x.cell.name(), s.side, s.requests, s.cpu)
			}
		}
	}
	checkReport(t, r, 2+6*len(gridSides))
}

func TestCollapse(t *testing.T) {
	x := gridRow{cell: cell{gridKinds[0], 1, 1, 64}, sides: []gridFigures{
		{side: sideTCP, requests: []float64{100, 100, 100}, cpu: []float64{1}},
		{side: sideRDMA, requests: []float64{10, 31, 0}, cpu: []float64{1}},
	}}
	r := &results{machine: describeMachine(), o: testOptions("."), grid: []gridRow{x}}
	if text := r.report(); !strings.Contains(text, "Collapsed: grid 1x1x64 B on RDMA.") {
		t.Error(text)
	} else if !strings.Contains(text, "RDMA: slower than the first side in 1 of 1 cells: grid 1x1x64 B (0.100).") {
		t.Error(text)
	}
	x.sides[1].requests[0] = 90
	if text := r.report(); !strings.Contains(text, "No cell has collapsed.") {
		t.Error(text)
	}
	x.sides[1].requests[2] = 120
	x.sides[1].requests[1] = 101
	if text := r.report(); !strings.Contains(text, "RDMA: slower than the first side in none of 1 cells.") {
		t.Error(text)
	}
}

func TestHistogram(t *testing.T) {
	var h, sum histogram
	if h.percentile(50) != 0 {
		t.Error("a percentile of nothing")
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	sum.merge(&h)
	sum.merge(&h)
	for p, want := range map[float64]float64{0.1: 1e3, 50: 500e3, 99: 990e3, 99.9: 999e3, 100: 1000e3} {
		got := float64(sum.percentile(p)) / want
		if got < 1 || got > 1.04 {
			t.Errorf("%v %%: %v times %v ns", p, got, want)
		}
	}
	for d := time.Duration(1); d > 0; d *= 3 {
		if i := bucketOf(d); bucketEnd(i) < d || i > 0 && bucketEnd(i-1) >= d {
			t.Errorf("%d is in bucket %d, of up to %d", d, i, bucketEnd(i))
		}
	}
}

// TestIdle: what a connection costs that does nothing. With RDMA_LONG=1 it is ten thousand of them.
func TestIdle(t *testing.T) {
	o, conns, settle := testOptions("."), 500, 2*time.Second
	if os.Getenv("RDMA_LONG") != "" {
		conns, settle = 10000, 10*time.Second
	}
	s, err := sidesNamed(o.device, []string{sideQuiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	x, err := measureIdle(ctx, o, &s[0], conns, settle)
	if err != nil {
		t.Fatal(err)
	}
	r := &results{machine: describeMachine(), o: o, idle: []*idleRow{x}}
	t.Log(r.report())
	for end, name := range []string{"client", "server"} {
		first, full, late := &x.first[end], &x.full[end], &x.late[end]
		if each := x.each(end, (*usage).memory); !raceEnabled && each > 64<<10 {
			t.Errorf("%s: a connection takes %.0f bytes", name, each)
		}
		if late.Threads > first.Threads+8 {
			t.Errorf("%s: %d threads, and with %d connections %d", name, late.Threads, x.few, first.Threads)
		}
		if late.Descriptors > first.Descriptors+8 {
			t.Errorf("%s: %d descriptors, and with %d connections %d", name, late.Descriptors, x.few, first.Descriptors)
		}
		parked := 0
		if end == 1 {
			parked = x.conns - x.few // in Read, the server's own
		}
		if full.Goroutines > first.Goroutines+parked+8 {
			t.Errorf("%s: %d goroutines, and with %d connections %d", name, full.Goroutines, x.few, first.Goroutines)
		}
		if used := x.idleCPU(end); used > settle/100 {
			t.Errorf("%s: %v of processor time in %v of doing nothing", name, used, settle)
		}
	}
}
