package kernel

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestPacketConnUdaddy has udaddy at the other end of rdmanet's datagrams, in both roles.
func TestPacketConnUdaddy(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for _, size := range []int{5, 1024} {
			t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
				s := w.listens(w.c("udaddy", "-b", w.kernel, "-c", 3, "-C", 10, "-S", size), udaddyPort)
				require.Contains(t, w.peer("udaddynet", "-s", w.kernel, "-p", udaddyPort, "-c", 3, "-C", 10, "-S", size).ends(), "all messages both ways")
				require.Contains(t, s.ends(), "data transfers complete")
				s = w.peer("udaddynet", "-b", w.ours, "-p", udaddyPort, "-c", 3, "-C", 10, "-S", size).until("listening")
				require.Contains(t, w.c("udaddy", "-s", w.ours, "-c", 3, "-C", 10, "-S", size).ends(), "data transfers complete")
				require.Contains(t, s.ends(), "all messages both ways")
			})
		}
	})
}

// TestPacketConnMckey does the same with mckey.
func TestPacketConnMckey(t *testing.T) {
	g, p := vmtest.SharedPeer(t)
	program, err := g.Build(t.Context(), "github.com/go-rdma/rdma/test/kernel/peer", "-race")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := &world{t, g, ctx, p.Netns, p.Far.Interface, p.Near.V4, p.Far.V4, program}
	for i, c := range []int{1, 4} {
		group := fmt.Sprintf("239.1.8.%d", 2*i+1)
		s := w.c("mckey", "-m", group, "-b", w.kernel, "-c", c, "-C", 10, "-S", 100).until("receiving data transfers")
		args := []any{"mckeynet", "-m", group, "-b", w.ours, "-send", "-C", 10, "-S", 100}
		if c > 1 {
			args = append(args, "-o") // to send only
		}
		require.Contains(t, w.peer(args...).ends(), "all messages")
		require.Contains(t, s.ends(), "data transfers complete")
		group = fmt.Sprintf("239.1.8.%d", 2*i+2)
		s = w.peer("mckeynet", "-m", group, "-b", w.ours, "-C", 10, "-S", 100).until("joined")
		require.Contains(t, w.c("mckey", "-m", group, "-b", w.kernel, "-s", "-C", 10, "-S", 100).ends(), "data transfers complete")
		require.Contains(t, s.ends(), "all messages")
	}
}
