package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// SEND, READ and WRITE both ways, of less than a packet, of exactly one, and of many. Both sides check all bytes.
func TestRping(t *testing.T) {
	const n = 10
	sizes := []int{64, 1024, 1025, 65535}
	families(t, func(t *testing.T, w *world) {
		t.Run("KernelListens", func(t *testing.T) {
			stop := w.capture(t)
			for _, size := range sizes {
				p := port()
				s := w.listens(w.c("rping", "-s", "-v", "-a", w.kernel, "-p", p, "-C", n, "-S", size), p)
				require.Contains(t, w.peer("rping", "-s", w.kernel, "-p", p, "-C", n, "-S", size).ends(), "all pings")
				requirePings(t, s.ends(), "server ping data: ", n, size)
			}
			stop("RC Send Only", "RC RDMA Read Response First", "RC RDMA Read Response Middle", "RC RDMA Read Response Last",
				"RC RDMA Read Response Only", "RC Acknowledge", "DisconnectRequest")
		})
		t.Run("SoftroceListens", func(t *testing.T) {
			stop := w.capture(t)
			for _, size := range sizes {
				p := port()
				s := w.peer("rping", "-b", w.ours, "-p", p, "-C", n, "-S", size).until("listening")
				requirePings(t, w.c("rping", "-c", "-v", "-V", "-a", w.ours, "-p", p, "-C", n, "-S", size).ends(), "ping data: ", n, size)
				require.Contains(t, s.ends(), "all pings")
			}
			stop("RC Send Only", "RC RDMA Read Request", "RC RDMA Write First", "RC RDMA Write Middle", "RC RDMA Write Last",
				"RC RDMA Write Only", "DisconnectReply")
		})
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
