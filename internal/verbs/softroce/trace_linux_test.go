package softroce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace/tracetest"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// key identifies a packet on the wire.
func key(p tracetest.Packet) string {
	return fmt.Sprintf("%v %v %d %x", p.Src, p.Dst, p.ID, p.Datagram)
}

// TestTrace records both ends of connections in one process: each packet sent is one received, and
// tshark knows what all of them are.
func TestTrace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.pcapng")
	rec, err := trace.Open(name, "softroce0")
	require.NoError(t, err)
	p := New(&Config{Trace: rec})
	held, err := p.use()
	require.NoError(t, err)
	const message = 60_000
	for _, ip := range []string{"127.0.0.1:0", "[::1]:0"} {
		l := mustListen(t, p, netip.MustParseAddrPort(ip), nil)
		x := resolveSide(t, p, l.Addr())
		done := x.dial(background())
		y := accept(t, l)
		require.NoError(t, done())
		n, err := y.qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: y.mr.Addr(), Length: 1 << 16, LKey: y.mr.LKey()}}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = x.qp.PostSend([]verbs.SendWR{{
			ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: message, LKey: x.mr.LKey()}},
		}})
		require.NoError(t, err)
		require.Equal(t, verbs.Success, y.completion().Status)
		require.Equal(t, verbs.Success, x.completion().Status)
		require.NoError(t, x.id.Disconnect())
		require.Equal(t, verbs.EventDisconnected, x.wait(1).Type)
		x.close()
		y.wait(2)
		y.close()
		require.NoError(t, l.Close())
		// Nobody listens any more.
		x = resolveSide(t, p, l.Addr())
		_, err = x.id.Connect(background(), &param)
		require.Error(t, err)
		x.close()
	}
	// A message that was repeated because it took long may still be on its way.
	require.Eventually(t, func() bool {
		rec.Flush()
		on := map[string]int{}
		for _, p := range tracetest.Read(t, name, false) {
			if p.Outbound {
				on[key(p)]++
			} else {
				on[key(p)]--
			}
			if on[key(p)] == 0 {
				delete(on, key(p))
			}
		}
		return len(on) == 0
	}, 10*time.Second, 10*time.Millisecond, "sent and not received, or the other way round")
	held.dev.release()
	unused(t, p)
	rec.Flush()

	ps := tracetest.Read(t, name, false)
	open := map[string]int{}
	var joined int
	// A sender that was interrupted for longer than packets wait comes late.
	inOrder := slices.Clone(ps)
	slices.SortStableFunc(inOrder, func(a, b tracetest.Packet) int { return a.At.Compare(b.At) })
	for i, p := range inOrder {
		require.True(t, p.Good(), "packet %d", i)
		require.Empty(t, p.Comment)
		require.Zero(t, p.Drops)
		if p.Outbound {
			open[key(p)]++
		} else {
			open[key(p)]--
			require.GreaterOrEqual(t, open[key(p)], 0, "received before it was sent")
		}
		if p.Outbound && p.ID > 0 {
			joined++
		}
	}
	for k, n := range open {
		require.Zero(t, n, "sent and not received, or the other way round: %.100s", k)
	}
	require.Positive(t, joined, "nothing was sent in segments, or not recorded as such")

	out := tracetest.Tshark(t, name, "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
		"-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info",
		"-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(ps))
	seen := map[string]int{}
	for i, line := range lines {
		f := strings.Split(line, "\t")
		require.Len(t, f, 6, line)
		for _, what := range []string{
			"ConnectRequest", "ConnectReply", "ReadyToUse", "ConnectReject", "DisconnectRequest", "DisconnectReply",
			"RC Send First", "RC Send Middle", "RC Send Last", "RC Acknowledge",
		} {
			if strings.Contains(f[1], what) {
				seen[what]++
			}
		}
		require.Equal(t, "softroce0", f[4])
		if ps[i].Src.Addr().Is4() {
			require.Equal(t, "1", f[2], line) // good
		}
		require.Equal(t, "1", f[3], line)
		require.Equal(t, map[bool]string{false: "1", true: "2"}[ps[i].Outbound], strings.TrimPrefix(f[5], "0x0000000"), line)
	}
	t.Log(seen)
	for what, n := range map[string]int{
		"ConnectRequest": 4, "ConnectReply": 2, "ReadyToUse": 2, "ConnectReject": 2, "DisconnectRequest": 2, "DisconnectReply": 2,
		"RC Send First": 2, "RC Send Middle": 26, "RC Send Last": 2, "RC Acknowledge": 2,
	} {
		require.GreaterOrEqual(t, seen[what], 2*n, what) // once sent, once received
	}
}

// TestTraceProcesses: of processes that share the port each records what is its own. What one
// hands over is in the trace of the one that it is for, once.
func TestTraceProcesses(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(trace.Env, filepath.Join(dir, "t.%p.pcapng"))
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	procs := []*proc{newProc(t), newProc(t), newProc(t)}
	var at []netip.AddrPort
	for _, c := range procs {
		at = append(at, c.listen("127.0.0.1:0"))
	}
	for range 5 {
		for i, c := range procs {
			require.Equal(t, "ok", c.do("dialled", "dial %s", at[(i+1)%3]))
			require.Equal(t, "ok", c.do("dialled", "dial %s", at[(i+2)%3]))
		}
	}
	handed := 0
	for _, c := range procs {
		if c.do("handed", "handed") != "0" {
			handed++
		}
	}
	require.Positive(t, handed, "the kernel never chose wrong")
	for _, c := range procs {
		require.Equal(t, "<nil>", c.do("closed", "close"))
	}
	time.Sleep(200 * time.Millisecond)
	for _, c := range procs {
		c.kill()
	}
	sent, received := map[string]int{}, map[string]int{}
	for _, c := range procs {
		for _, p := range tracetest.Read(t, filepath.Join(dir, fmt.Sprintf("t.%d.pcapng", c.cmd.Process.Pid)), true) {
			require.True(t, p.Good())
			if p.Outbound {
				sent[key(p)]++
			} else {
				received[key(p)]++
			}
		}
	}
	require.NotEmpty(t, sent)
	for k, n := range received {
		require.Equal(t, sent[k], n, "%.100s", k)
	}
	// A packet of the last moment may be missing at one end.
	missing := 0
	for k := range sent {
		if received[k] == 0 {
			missing++
		}
	}
	require.Less(t, missing, len(sent)/10)
}

// TestTraceDrops: what is no good, or for nobody, is in the trace with the reason.
func TestTraceDrops(t *testing.T) {
	name := filepath.Join(t.TempDir(), "t.pcapng")
	rec, err := trace.Open(name, "softroce0")
	require.NoError(t, err)
	p := New(&Config{Trace: rec})
	in, err := p.use()
	require.NoError(t, err)
	slot := in.share.Slot()
	other := slot
	for err = nil; !errors.Is(err, share.ErrUnclaimed); {
		other = other%share.MaxSlot + 1
		var stop func()
		if stop, err = in.share.Watch(other, func() {}); err == nil {
			stop()
		}
	}
	var comments []string
	// The kernel may give a flow to another process that has the port.
	for range 100 {
		from := sendBad(t, uint32(slot)<<16|5, uint32(other)<<16|5)
		time.Sleep(20 * time.Millisecond)
		rec.Flush()
		comments = nil
		for _, p := range tracetest.Read(t, name, false) {
			if p.Src == from {
				comments = append(comments, p.Comment)
			}
		}
		if len(comments) == 5 {
			break
		}
	}
	require.Equal(t, []string{
		"dropped: no RoCE packet has this length",
		"dropped: wrong ICRC: corrupted, or rewritten on the way, by NAT for one",
		"",
		"dropped: no datagram for the general services interface",
		"dropped: another process's, which is gone or takes no more",
	}, comments)
	in.dev.release()
	unused(t, p)
}

// sendBad sends five packets that nobody takes.
func sendBad(t *testing.T, qpn, gone uint32) (from netip.AddrPort) {
	c, err := net.Dial("udp", "127.0.0.1:4791")
	require.NoError(t, err)
	defer c.Close()
	from = c.LocalAddr().(*net.UDPAddr).AddrPort()
	packet := func(qpn uint32) []byte {
		d := make([]byte, wire.BTHLen+wire.ICRCLen)
		h := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: qpn}}
		h.PutHeaders(d)
		crc := wire.ICRCStart(from.Addr(), from.Addr(), from.Port(), 8+len(d), 0)
		wire.PutICRC(d[wire.BTHLen:], wire.ICRCHeader(crc, d[:wire.BTHLen]))
		return d
	}
	bad := packet(5)
	bad[len(bad)-1] ^= 1
	for _, d := range [][]byte{[]byte("hello"), bad, packet(qpn), packet(wire.QPNGSI), packet(gone)} {
		_, err = c.Write(d)
		require.NoError(t, err)
	}
	return from
}
