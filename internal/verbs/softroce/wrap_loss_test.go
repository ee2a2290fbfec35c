package softroce

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestPSNWrap crosses 2^24 at each packet of a few messages, and loses each of their packets in turn,
// or each acknowledgement, once or three times.
func TestPSNWrap(t *testing.T) {
	const packets = 6 + 3 + 2 + 1
	// lost is the packet of the run that is lost, sent counts them all.
	run := func(t *testing.T, back uint32, requests bool, lost, times int) {
		bubble(t, func(t *testing.T) {
			network, a, b := pair(t, 1, simnet.Options{Delay: 20 * time.Microsecond})
			l := link{mtu: 256, psnA: (1<<24 - back) & psnMask, psnB: 7}
			x, y := connected(a, b, l)
			data := pattern(9, 4000)
			copy(a.mem, data)
			y.recv(verbs.RecvWR{ID: 1, SGL: b.sgl(100_000, 1000)}, verbs.RecvWR{ID: 2})
			n := 0
			network.Filter(func(f *simnet.Frame) bool {
				var p wire.Packet
				require.NoError(t, p.Decode(f.Data))
				if p.Opcode.IsRequest() != requests {
					return false
				}
				n++
				return n > lost && n <= lost+times
			})
			to := b.mr.Addr()
			x.send(
				verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: a.sgl(0, 6*256), RemoteAddr: to, RKey: b.mr.RKey()},
				verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, SGL: a.sgl(2000, 600)},
				verbs.SendWR{ID: 3, Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, Imm: 5, SGL: a.sgl(3000, 300), RemoteAddr: to + 3000, RKey: b.mr.RKey()},
				verbs.SendWR{ID: 4, Op: verbs.OpWrite, Flags: verbs.Signaled, RemoteAddr: to, RKey: b.mr.RKey()},
			)
			time.Sleep(2 * time.Second)
			require.Equal(t, []outcome{{1, 0}, {2, 0}, {3, 0}, {4, 0}}, x.outcomes())
			require.Equal(t, []outcome{{1, 0}, {2, 0}}, y.outcomes())
			require.Equal(t, data[:6*256], b.mem[:6*256])
			require.Equal(t, data[2000:2600], b.mem[100_000:100_600])
			require.Equal(t, data[3000:3300], b.mem[3000:3300])
			after := wire.PSNAdd(l.psnA, packets)
			require.Equal(t, [2]uint32{after, after}, [2]uint32{x.q.rc.una, y.q.rc.exp})
			require.Equal(t, x.q.rc.una, x.q.rc.max)
			require.Zero(t, x.q.rc.inflight)
			if requests {
				require.Greater(t, n, packets, "one was sent again")
			}
		})
	}
	for back := range uint32(packets + 2) {
		for _, times := range []int{1, 3} {
			for lost := range packets {
				run(t, back, true, lost, times)
			}
			for lost := range 4 {
				run(t, back, false, lost, times)
			}
			if t.Failed() {
				t.Fatalf("2^24 after %d packets", back)
			}
		}
	}
}

// TestWindowAcrossTheWrap: a full window of packets, so that una, nxt and max lie on both sides, and a
// part of it is lost.
func TestWindowAcrossTheWrap(t *testing.T) {
	for back := uint32(0); back <= sendWindow+100; back += 97 {
		bubble(t, func(t *testing.T) {
			network, a, b := pair(t, uint64(back), simnet.Options{Delay: 2 * time.Millisecond, Loss: 0.02})
			l := link{mtu: 256, psnA: (1<<24 - back) & psnMask, psnB: (1<<24 - back/2) & psnMask}
			x, y := connected(a, b, l)
			for _, e := range []*end{x, y} {
				e.q.rc.cc.window = 1 << 30
			}
			const size = 1500 * 256
			copy(a.mem, pattern(1, size))
			copy(b.mem, pattern(2, size))
			for _, e := range [][2]*end{{x, y}, {y, x}} {
				e[0].send(verbs.SendWR{
					ID: 1, Op: verbs.OpWrite, Flags: verbs.Signaled, SGL: e[0].sgl(0, size),
					RemoteAddr: e[1].mr.Addr() + size, RKey: e[1].mr.RKey(),
				})
			}
			time.Sleep(time.Minute)
			require.Equal(t, []outcome{{1, 0}}, x.outcomes())
			require.Equal(t, []outcome{{1, 0}}, y.outcomes())
			require.Equal(t, pattern(1, size), b.mem[size:2*size])
			require.Equal(t, pattern(2, size), a.mem[size:2*size])
			require.NotZero(t, network.Stats().Lost)
		})
	}
}
