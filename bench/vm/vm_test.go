package main

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"
)

// What the programs wrote.
const (
	saidRstream = `name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer
custom    64      1       100     12k         0.16s      0.00     776.93
`
	saidLatency = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      100          120.59         310.43       140.61   	       147.34      	28.74  		310.43  		310.43 
`
	saidBandwidth = ` Mtu             : 4096[B]
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      64               33.48              31.72  		   0.000507
`
)

func TestReading(t *testing.T) {
	ping, stream := &shapes[0], &shapes[2]
	for _, x := range []struct {
		read func(*shape, string) (float64, error)
		s    *shape
		out  string
		want float64 // the figure
	}{
		{readRstream, ping, saidRstream, 776.93},
		{readPerftest, ping, saidLatency, 147.34},
		{readPerftest, stream, saidBandwidth, 31.72},
		{readGo, ping, `{"USPerTransfer": 12.5, "CgoCalls": 2}`, 12.5},
	} {
		us, err := x.read(x.s, x.out)
		if got := x.s.figure(us); err != nil || math.Abs(got-x.want) > 1e-9 {
			t.Errorf("%q: %v, %v, want %v", x.out, got, err, x.want)
		}
		if us, err := x.read(x.s, "no figures\n"); err == nil {
			t.Errorf("found %v in nothing", us)
		}
	}
}

func TestArguments(t *testing.T) {
	s := shape{size: 4096, count: 8, iters: 3, warm: 1, stream: true}
	var lines []string
	for _, p := range programs("/bench") {
		if p.streams {
			lines = append(lines, strings.Join(p.args(&s, "10.9.0.1", 7, true), " "))
		}
	}
	want := `/bench -dial 10.9.0.1:7 -busy 0s -size 4096 -count 8 -iters 3 -warm 1
/bench -dial 10.9.0.1:7 -busy 100ms -size 4096 -count 8 -iters 3 -warm 1
ip netns exec soft /bench -dial 127.0.0.1:7 -busy 0s -size 4096 -count 8 -iters 3 -warm 1 -device softroce
rstream -s 10.9.0.1 -p 7 -S 4096 -C 8 -I 3
rstream -s 10.9.0.1 -p 7 -S 4096 -C 8 -I 3 -T b
ib_write_bw -R -F -p 7 -s 4096 -n 48 10.9.0.1`
	for _, p := range programs("/bench") {
		if p.datagrams {
			want += "\n" + map[bool]string{
				true: "/bench -dial 10.9.0.1:7 -busy 0s -size 4096 -count 8 -iters 3 -warm 1 -datagrams", false: "ib_send_bw -c UD -R -F -p 7 -s 4096 -n 48 10.9.0.1",
			}[p.name == rdmanetName]
			lines = append(lines, strings.Join(p.args(&s, "10.9.0.1", 7, true), " "))
		}
	}
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestShapes: the base of CPU times is a run of fewer transfers.
func TestShapes(t *testing.T) {
	for _, s := range shapes {
		c := newContestant(&program{name: rdmanetName}, s, 0.1)
		if few, all := c.few.transfers(), c.s.transfers(); few >= all || few < 5 {
			t.Errorf("%s: %d transfers of %d", s.name, few, all)
		}
		if got, want := (&program{warms: true}).done(&s), s.transfers()+2*s.warm*s.count; got != want {
			t.Errorf("%s: %d transfers with warming up, want %d", s.name, got, want)
		}
	}
}

// TestReadyFile: a server tells when it listens, and an earlier one's word does not count.
func TestReadyFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	args, _ := readyFile()
	if err := os.WriteFile(args[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again, listens := readyFile()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := listens(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, though nobody listens", err)
	}
	if err := os.WriteFile(again[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := listens(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestReport(t *testing.T) {
	r := &result{Kernel: "Linux 6.1", CPUs: 2, Rows: []row{
		{
			Shape: shapes[0].name, Program: rdmanetName, Figures: []float64{100, 300, 200}, Own: []float64{1, 1, 1}, Guest: []float64{2, 2, 2},
			Peers: []peerResult{{CgoCalls: 2}, {CgoCalls: 4}},
		},
		{Shape: shapes[0].name, Program: softName, Figures: []float64{50, 100, 50}, Own: []float64{1, 1, 1}, Guest: []float64{2, 2, 2}},
		{Shape: shapes[0].name, Program: rstreamName, Figures: []float64{200, 300, 100}, Own: []float64{1, 1, 1}, Guest: []float64{2, 2, 2}},
	}}
	text := report(host{}, time.Unix(0, 0).UTC(), &options{rounds: 3, mtu: 4200}, r)
	for _, want := range []string{
		"| 64 B half round trip | rdmanet | 200 (100 to 300) µs |  | 3.00 (2.00 to 4.00) | 1.00 | 2.00 |\n",
		"| 64 B half round trip | rstream | 200 (100 to 300) µs | 1.00 (0.500 to 2.00) | 3.00 (2.00 to 4.00) | 1.00 | 2.00 |\n",
		"| 64 B half round trip | rdmanet | 3.00 | 0 | 0 | 0 | 0 | 0 |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
