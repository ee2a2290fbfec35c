package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Streams to and from C, for the sake of what tshark says of their packets: package interop has more of them.
func TestStream(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		program, err := w.g.Build(w.ctx, "github.com/go-rdma/rdma/test/interop/cmd/rstream", "-race")
		require.NoError(t, err)
		ours := func(args ...any) *process {
			c := w.g.Command(w.ctx, program, words(append(args, "-v", "-S", 5000, "-C", 20, "-I", 2))...).In(w.netns)
			c.Env = []string{"RDMANET_DEVICE=softroce"}
			return w.start(c)
		}
		theirs := func(args ...any) *process {
			return w.c("rstream", append(args, "-T", "v", "-T", "b", "-S", 5000, "-C", 20, "-I", 2)...)
		}
		stop := w.capture(t)
		p := port()
		s := w.listens(theirs("-b", w.kernel, "-p", p), p)
		require.Contains(t, ours("-s", w.kernel, "-p", p).ends(), "end after")
		s.ends()
		p = port()
		s = ours("-b", w.ours, "-p", p).until("listening")
		theirs("-s", w.ours, "-p", p).ends()
		require.Contains(t, s.ends(), "end after")
		stop("ConnectRequest", "ConnectReply", "RC RDMA Write Only Immediate", "RC RDMA Write First", "RC RDMA Write Last Immediate",
			"RC Acknowledge", "DisconnectRe")
	})
}
