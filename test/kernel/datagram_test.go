package kernel

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// udaddyPort is built into udaddy.
const udaddyPort = 7174

// Datagrams both ways: the service is looked up, and its answers go to where the questions came from.
func TestUdaddy(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		// 5 bytes are padded; tshark takes shorter ones for a protocol by an Ethernet type. 1024 is the limit on Ethernet.
		for _, size := range []int{5, 1024} {
			t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
				t.Run("KernelListens", func(t *testing.T) {
					stop := w.capture(t)
					s := w.listens(w.c("udaddy", "-b", w.kernel, "-c", 3, "-C", 10, "-S", size), udaddyPort)
					out := w.peer("udaddy", "-s", w.kernel, "-p", udaddyPort, "-c", 3, "-C", 10, "-S", size).ends()
					require.Contains(t, out, "with Q_Key 0x1234567\n")
					require.Contains(t, out, "all messages both ways")
					require.Contains(t, s.ends(), "data transfers complete")
					stop("UD Send Only")
				})
				t.Run("SoftroceListens", func(t *testing.T) {
					stop := w.capture(t)
					s := w.peer("udaddy", "-b", w.ours, "-p", udaddyPort, "-c", 3, "-C", 10, "-S", size).until("listening")
					require.Contains(t, w.c("udaddy", "-s", w.ours, "-c", 3, "-C", 10, "-S", size).ends(), "data transfers complete")
					require.Contains(t, s.ends(), "all messages both ways")
					stop("UD Send Only")
				})
			})
		}
	})
}

// Nobody serves the port, or the application refuses.
func TestUdaddyRefused(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		stop := w.capture(t)
		require.Contains(t, w.peer("nolookup", "-s", w.kernel, "-p", udaddyPort).ends(), "refused, status 1\n")
		other := w.peer("nolookup", "-b", w.ours, "-p", port()).until("listening")
		_, out := w.c("udaddy", "-s", w.ours).fails()
		require.Contains(t, out, "RDMA_CM_EVENT_UNREACHABLE, error: 1")
		require.NoError(t, other.Kill())
		_ = other.Wait()
		s := w.peer("nolookup", "-b", w.ours, "-p", udaddyPort).until("listening")
		_, out = w.c("udaddy", "-s", w.ours).fails()
		require.Contains(t, out, "RDMA_CM_EVENT_UNREACHABLE, error: 2")
		s.ends()
		stop()
	})
}

// Groups of IPv4; rdma_cm of Linux 6.1 refuses those of IPv6 on RoCE.
func TestMckey(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	program, err := g.Build(t.Context(), "github.com/go-rdma/rdma/test/kernel/peer")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{t, g, ctx, p.Netns, p.Far.Interface, p.Near.V4, p.Far.V4, program}
	for i, c := range []int{1, 4} {
		t.Run(fmt.Sprintf("KernelReceives%d", c), func(t *testing.T) {
			stop := w.capture(t)
			group := fmt.Sprintf("239.1.7.%d", 2*i+1)
			s := w.c("mckey", "-m", group, "-b", w.kernel, "-c", c, "-C", 10, "-S", 100).until("receiving data transfers")
			args := []any{"mckey", "-m", group, "-b", w.ours, "-send", "-C", 10, "-S", 100}
			if c > 1 {
				args = append(args, "-o") // to send only
			}
			require.Contains(t, w.peer(args...).ends(), "all messages")
			out := s.ends()
			require.Contains(t, out, "data transfers complete")
			require.Equal(t, c, strings.Count(out, "mckey: joined dgid:"), out)
			stop("UD Send Only")
		})
		t.Run(fmt.Sprintf("SoftroceReceives%d", c), func(t *testing.T) {
			group := fmt.Sprintf("239.1.7.%d", 2*i+2)
			s := w.peer("mckey", "-m", group, "-b", w.ours, "-c", c, "-C", 10, "-S", 100).until("joined")
			require.Contains(t, w.c("mckey", "-m", group, "-b", w.kernel, "-s", "-C", 10, "-S", 100).ends(), "data transfers complete")
			require.Contains(t, s.ends(), "all messages")
		})
	}
}
