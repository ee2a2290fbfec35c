package softroce

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace/tracetest"
)

// TestTraceDatagrams records a lookup and datagrams, to a queue pair and to a group: each one sent is one received, and
// tshark finds nothing wrong with any.
func TestTraceDatagrams(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.pcapng")
	rec, err := trace.Open(name, "softroce0")
	require.NoError(t, err)
	p := New(&Config{Trace: rec})
	local := netip.MustParseAddr("127.0.0.1")
	l := listenUD(t, p, netip.AddrPortFrom(local, 0))
	x := newUDSide(t, resolveUD(t, p, verbs.CMIDAttr{Local: netip.AddrPortFrom(local, 0)}))
	y := newUDSide(t, resolveUD(t, p, verbs.CMIDAttr{Local: netip.AddrPortFrom(local, 0)}))
	group := verbs.JoinAttr{Group: netip.MustParseAddr("239.255.71.5")}
	g, err := y.id.(verbs.UDCMID).Join(background(), &group)
	require.NoError(t, err)
	u := lookUp(t, p, l, l.Addr(), y.qp.Num())
	for i, to := range []*verbs.UDParam{u, g} {
		y.post()
		x.sayUD(to, strings.Repeat("text", i+7))
		require.Equal(t, strings.Repeat("text", i+7), y.heardUD())
	}
	// Datagrams of one length to one queue pair leave together.
	const joined = 8
	ah, err := x.pd.CreateAH(&u.AH)
	require.NoError(t, err)
	var wrs []verbs.SendWR
	for range joined {
		y.post()
		wrs = append(wrs, verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: 500, LKey: x.mr.LKey()}}, AH: ah, RemoteQPN: u.QPN, RemoteQKey: u.QKey})
	}
	n, err := x.qp.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, joined, n)
	for range joined {
		y.heardUD()
	}
	require.NoError(t, ah.Close())
	bad := *u
	bad.QPN ^= 1 << 12
	x.sayUD(&bad, "for nobody")
	require.Eventually(t, func() bool { return p.inst.dev.stats.unknownQP.Load() == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	x.close()
	y.close()
	unused(t, p)
	rec.Flush()

	open, last := map[string]int{}, uint16(0)
	for i, p := range tracetest.Read(t, name, false) {
		require.True(t, p.Good(), "packet %d", i)
		if p.Outbound {
			open[key(p)]++
			last = max(last, p.ID)
		} else {
			open[key(p)]--
		}
	}
	for k, n := range open {
		require.Zero(t, n, "sent and not received, or the other way round: %.100s", k)
	}
	require.Len(t, open, 5+joined, "SIDR_REQ, SIDR_REP and the datagrams")
	require.EqualValues(t, joined-1, last, "the kernel has cut them out of one send")
	out := tracetest.Tshark(t, name, "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.destqp", "-e", "_ws.malformed", "-e", "_ws.expert.message")
	n = 0
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		require.Equal(t, "100", f[0])
		require.Empty(t, f[2]+f[3], "tshark: %s", line)
		if f[1] == "0xffffff" {
			n++
		}
	}
	require.Equal(t, 2, n)
}
