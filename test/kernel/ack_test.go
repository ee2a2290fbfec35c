package kernel

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counters are those of the kernel's device that say what went wrong.
func (w *world) counters() map[string]string {
	w.Helper()
	out, err := w.g.Command(w.ctx, "sh", "-c",
		"cd /sys/class/infiniband/rxe0/ports/1/hw_counters && for c in retry* rcvd_seq_err rcvd_rnr_err; do echo $c $(cat $c); done").Output()
	require.NoError(w, err)
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[name] = n
	}
	require.Contains(w, all, "retry_exceeded_err")
	return all
}

// TestAcknowledgedInTime: a requester in the kernel gets its acknowledgements long before it would send again, though softroce lets them wait for
// answers to go with: it never sends anything twice, and counts no error.
func TestAcknowledgedInTime(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		program, err := w.g.Build(w.ctx, "github.com/go-rdma/rdma/test/interop/cmd/rstream")
		require.NoError(t, err)
		rstream := func(args ...any) *process {
			c := w.g.Command(w.ctx, program, words(append(args, "-S", 64, "-C", 100, "-I", 1))...).In(w.netns)
			c.Env = []string{"RDMANET_DEVICE=softroce"}
			return w.start(c)
		}
		type kind struct {
			name string
			run  func(p int)
		}
		for _, k := range some(w,
			kind{"SENDs", func(p int) {
				s := w.peer("rping", "-b", w.ours, "-p", p, "-C", 30, "-S", 100).until("listening")
				w.c("rping", "-c", "-a", w.ours, "-p", p, "-C", 30, "-S", 100).ends()
				s.ends()
			}},
			kind{"turns", func(p int) {
				s := rstream("-b", w.ours, "-p", p).until("listening")
				w.c("rstream", "-s", w.ours, "-p", p, "-T", "b", "-S", 64, "-C", 100, "-I", 1).ends()
				s.ends()
			}},
			kind{"turns, its server", func(p int) {
				s := w.listens(w.c("rstream", "-b", w.kernel, "-p", p, "-T", "b", "-S", 64, "-C", 100, "-I", 1), p)
				rstream("-s", w.kernel, "-p", p).ends()
				s.ends()
			}},
		) {
			t.Run(k.name, func(t *testing.T) {
				before := w.counters()
				stop := w.record(t)
				k.run(port())
				packets := stop("infiniband.bth.opcode < 32", "frame.time_epoch", "infiniband.bth.opcode", "infiniband.bth.psn", "infiniband.bth.a",
					"_ws.col.Source")
				require.Equal(t, before, w.counters())
				took, alone := acknowledged(t, packets, w.kernel.String())
				slices.Sort(took)
				t.Logf("%d requests acknowledged after %v (median), %v (90%%), %v at most; %d of the acknowledgements came alone",
					len(took), took[len(took)/2], took[len(took)*9/10], took[len(took)-1], alone)
				require.GreaterOrEqual(t, len(took), 50)
				require.Less(t, took[len(took)/2], 100*time.Millisecond, "half of them")
				require.Less(t, took[len(took)-1], time.Second, "the kernel sends again after 2.1 s")
			})
		}
	})
}

// acknowledged returns how long each request of one end's, of a single connection, waited for its acknowledgement, which a response is
// too, and how many of these the other end sent without a request of its own right behind.
func acknowledged(t *testing.T, packets [][]string, from string) (took []time.Duration, alone int) {
	t.Helper()
	type request struct {
		psn uint32
		at  time.Duration
	}
	var waiting []request
	seen := map[uint32]bool{}
	lone := time.Duration(-1)
	for _, f := range packets {
		s, err := strconv.ParseFloat(f[0], 64)
		require.NoError(t, err)
		at := time.Duration(s * 1e9)
		op, err := strconv.ParseUint(f[1], 0, 8)
		require.NoError(t, err)
		n, err := strconv.ParseUint(f[2], 0, 32)
		require.NoError(t, err)
		psn := uint32(n)
		response := op >= 0x0d && op <= 0x12
		switch {
		case f[4] == from && !response:
			require.False(t, seen[psn], "the kernel sends PSN %d again: %s", psn, f)
			seen[psn] = true
			if f[3] == "True" || f[3] == "1" {
				waiting = append(waiting, request{psn, at})
			}
		case f[4] != from && response:
			for len(waiting) > 0 && int32((psn-waiting[0].psn)<<8) >= 0 {
				took = append(took, at-waiting[0].at)
				waiting = waiting[1:]
			}
			if op == 0x11 {
				alone++
				lone = at
			}
		case f[4] != from:
			if lone >= 0 && at-lone < 200*time.Microsecond {
				alone--
			}
			lone = -1
		}
	}
	require.Empty(t, waiting, "never acknowledged")
	return took, alone
}
