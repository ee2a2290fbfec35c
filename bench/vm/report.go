package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
)

type host struct{ cpu, kernel, load, tree string }

func describeHost() host {
	return host{figures.CPU(), figures.Kernel(), figures.Load(), figures.Tree()}
}

// report is the table in Markdown.
func report(h host, started time.Time, o *options, r *result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# rdmanet on Soft-RoCE beside rsockets and raw verbs, %s\n\n", started.Format("2006-01-02 15:04 MST"))
	fmt.Fprintf(&b, "A guest of %d emulated processors (QEMU, TCG) with %s and rxe0, MTU %d; %s.\n", r.CPUs, r.Kernel, o.mtu, r.Go)
	fmt.Fprintf(&b, "Host: %s, %d cores, %s, load before %s, after %s; tree %s.\n\n",
		h.cpu, runtime.NumCPU(), h.kernel, h.load, figures.Load(), h.tree)
	fmt.Fprintf(&b, `%d rounds in one run, all programs in turns, two processes each, over one device's own loopback: median (least to most).
Processors are emulated and the host's are shared with others, so ratios count and absolute figures do not.

- rdmanet, softroce: how many times as fast rdmanet is as this program, on rxe0 and on the embedded device, the medians over rounds; below 1 it is slower.
- CPU: microseconds for each transfer, beyond what a run of few transfers takes: of both processes, and of the whole guest, whose kernel
  is the device. A program that polls is busy all the time.

What differs: rstream and rdmanet do the same transfers, a number one way and then as many back. rdmanet does some more beforehand, for
its rings start at 16 KiB and grow with use up to 1 MiB each; rstream cannot, and has its whole buffers from the start (SO_SNDBUF
and SO_RCVBUF of 512 KiB, which make rings of 1 MiB). rstream polls without end (MSG_DONTWAIT), or blocks after 10 µs (-T b); rdmanet polls
without end too (BusyPoll 100ms), or where that makes waits shorter, for 1 ms at most (no BusyPoll), or never (BusyPoll -1). perftest writes one
way, as many bytes in all, 128 requests deep, from a buffer that nobody fills or reads; its figures are averages, those of latencies of halves of round trips; -e is with events.
Datagrams go one way to a queue pair, in batches of 32; rdmanet's figure is the receiver's, from the first that arrives to the last.
The embedded device (softroce) sends UDP over the loopback interface of a network namespace, since rdma_rxe holds the port in its own;
rdma_rxe hands packets for its own address to itself, without UDP.
`, o.rounds)
	fmt.Fprint(&b, "\n| case | program | figure | rdmanet | softroce | CPU, processes | CPU, guest |\n|---|---|---|---|---|---|---|\n")
	for _, s := range shapes {
		for i := range r.Rows {
			if x := &r.Rows[i]; x.Shape == s.name {
				fmt.Fprintf(&b, "| %s | %s | %s %s | %s | %s | %s | %s |\n", s.name, x.Program, figures.Spread(x.Figures), s.unit(),
					ratio(&s, r, rdmanetName, x), ratio(&s, r, softName, x), figures.Figure(figures.Median(x.Own)), figures.Figure(figures.Median(x.Guest)))
			}
		}
	}
	fmt.Fprint(&b, "\nIn rdmanet's processes, for each transfer, medians of all peers:\n\n")
	fmt.Fprint(&b, "| case | program | calls into C | allocations | waits that spun | that slept | stalls of a window | KiB of it |\n|---|---|---|---|---|---|---|---|\n")
	for i := range r.Rows {
		x := &r.Rows[i]
		if len(x.Peers) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s |", x.Shape, x.Program)
		for _, get := range []func(p *peerResult) float64{
			func(p *peerResult) float64 { return p.CgoCalls }, func(p *peerResult) float64 { return p.Mallocs },
			func(p *peerResult) float64 { return p.Spins }, func(p *peerResult) float64 { return p.Parks },
			func(p *peerResult) float64 { return p.Stalls }, func(p *peerResult) float64 { return float64(p.ReadBuffer) / 1024 },
		} {
			var v []float64
			for i := range x.Peers {
				v = append(v, get(&x.Peers[i]))
			}
			fmt.Fprintf(&b, " %s |", figures.Figure(figures.Median(v)))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// ratio is the median of how many times as fast the program of that name was as x.
func ratio(s *shape, r *result, name string, x *row) string {
	for i := range r.Rows {
		us := &r.Rows[i]
		if us.Shape != x.Shape || us.Program != name || us == x {
			continue
		}
		var v []float64
		for k := range min(len(us.Figures), len(x.Figures)) {
			v = append(v, s.faster(us.Figures[k], x.Figures[k]))
		}
		return figures.Spread(v)
	}
	return ""
}
