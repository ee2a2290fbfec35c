package kernel

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
)

// SEND, READ and WRITE both ways, of less than a packet, of exactly one, and of many. Both sides check all bytes. With -q the C
// program makes and moves its queue pair itself (rdma_establish(3) and rdma_init_qp_attr(3)).
func TestRping(t *testing.T) {
	const n = 10
	type run struct {
		size int
		self bool
	}
	runs := func(w *world) []run {
		return append(some(w, run{64, false}, run{1024, false}, run{1025, false}, run{65535, false}), run{3000, true})
	}
	c := func(r run, args ...any) []any {
		if r.self {
			args = append(args, "-q")
		}
		return append(args, "-C", n, "-S", r.size)
	}
	families(t, func(t *testing.T, w *world) {
		t.Run("KernelListens", func(t *testing.T) {
			stop := w.capture(t)
			for _, r := range runs(w) {
				p := port()
				s := w.listens(w.c("rping", c(r, "-s", "-v", "-a", w.kernel, "-p", p)...), p)
				require.Contains(t, w.peer("rping", "-s", w.kernel, "-p", p, "-C", n, "-S", r.size).ends(), "all pings")
				requirePings(t, s.ends(), "server ping data: ", n, r.size)
			}
			stop("RC Send Only", "RC RDMA Read Response First", "RC RDMA Read Response Middle", "RC RDMA Read Response Last",
				"RC Acknowledge", "DisconnectRequest")
		})
		t.Run("SoftroceListens", func(t *testing.T) {
			stop := w.capture(t)
			for _, r := range runs(w) {
				p := port()
				s := w.peer("rping", "-b", w.ours, "-p", p, "-C", n, "-S", r.size).until("listening")
				requirePings(t, w.c("rping", c(r, "-c", "-v", "-V", "-a", w.ours, "-p", p)...).ends(), "ping data: ", n, r.size)
				require.Contains(t, s.ends(), "all pings")
			}
			stop("RC Send Only", "RC RDMA Read Request", "RC RDMA Write First", "RC RDMA Write Middle", "RC RDMA Write Last",
				"DisconnectReply")
		})
	})
}

// A server that goes on (rping -P) takes one client after the other, and several at a time.
func TestRpingPersistent(t *testing.T) {
	const n, size = 5, 2000
	families(t, func(t *testing.T, w *world) {
		p := port()
		s := w.listens(w.c("rping", "-s", "-P", "-a", w.kernel, "-p", p, "-C", n, "-S", size), p)
		start := func() *process { return w.peer("rping", "-s", w.kernel, "-p", p, "-C", n, "-S", size) }
		require.Contains(t, start().ends(), "all pings")
		for _, c := range []*process{start(), start(), start()} {
			require.Contains(t, c.ends(), "all pings")
		}
		require.NoError(t, s.Kill())
		exit := new(vm.ExitError)
		require.ErrorAs(t, s.Wait(), &exit)
		require.Equal(t, int(syscall.SIGKILL), exit.Signal, "it was to live until then: %s", s.out)
	})
}

// requirePings looks at what a program of C has received, which it prints up to the zero at the end.
func requirePings(t *testing.T, out, prefix string, n, size int) {
	t.Helper()
	i := 0
	for line := range strings.Lines(out) {
		data, ok := strings.CutPrefix(line, prefix)
		if !ok {
			continue
		}
		require.True(t, strings.HasPrefix(data, fmt.Sprintf("rdma-ping-%d: %c", i, 'A'+i)), line)
		require.Len(t, strings.TrimSuffix(data, "\n"), size-1)
		i++
	}
	require.Equal(t, n, i, out)
}

// A listener of rsockets refuses versions of its protocol that it does not know, and what is none.
func TestConsumerReject(t *testing.T) {
	const rest = "02018000000000" + // little endian, credits
		"0000000000000000" + "00000000" + "00000002" + // addresses, keys and lengths
		"0000000000000000" + "00000000" + "00010000"
	families(t, func(t *testing.T, w *world) {
		stop := w.capture(t)
		p := port()
		s := w.listens(w.c("rstream", "-b", w.kernel, "-p", p, "-S", 64, "-C", 1, "-I", 1), p)
		for _, data := range []string{"", "00" + rest, "02" + rest, "ff" + rest} {
			require.Contains(t, w.peer("refused", "-s", w.kernel, "-p", p, "-d", data).ends(), "refused, reason 28\n", data)
		}
		// With the version that it knows the same is accepted.
		code, out := w.peer("refused", "-s", w.kernel, "-p", p, "-d", "01"+rest).fails()
		require.Equal(t, 1, code)
		require.Contains(t, out, "the connection was not refused")
		_ = s.Kill()
		_ = s.Wait()
		stop("ConnectRequest", "ReadyToUse")
	})
}
