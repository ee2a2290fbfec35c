package softroce

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// udpOpener opens real sockets on a port of the test's own, so that it shares
// 4791 with nobody.
type udpOpener struct{ port, remote uint16 }

func (o udpOpener) Open(h netio.Handler) (netio.Conn, error) {
	return netio.Listen(netio.Config{Handler: h, Port: o.port, RemotePort: o.remote})
}

// freePort returns a port that nobody has.
func freePort(t testing.TB) uint16 {
	c, err := net.ListenUDP("udp", &net.UDPAddr{})
	require.NoError(t, err)
	defer c.Close()
	return uint16(c.LocalAddr().(*net.UDPAddr).Port)
}

// udpPair is two devices on the loopback interface.
func udpPair(t testing.TB, addr netip.Addr) (a, b *node) {
	pa, pb := freePort(t), freePort(t)
	return newNode(t, nil, udpOpener{pa, pb}, addr), newNode(t, nil, udpOpener{pb, pa}, addr)
}

func TestOverUDP(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			a, b := udpPair(t, netip.MustParseAddr(addr))
			wake, notify := waker()
			x, y := connected(a, b, link{mtu: 4096, notifyA: notify})
			copy(a.mem, pattern(1, nodeMem/2))
			wr := verbs.SendWR{Op: verbs.OpWriteWithImm, Flags: verbs.Signaled, SGL: a.sgl(0, nodeMem/2), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			y.recv(verbs.RecvWR{})
			require.NoError(t, x.cq.Arm())
			x.send(wr)
			<-wake
			require.Equal(t, []outcome{{0, verbs.Success}}, x.outcomes())
			require.Len(t, y.completions(), 1)
			require.Equal(t, a.mem[:nodeMem/2], b.mem[:nodeMem/2])
			stream(x, y, wake, 64<<20, 128<<10, 16)
			require.Equal(t, a.mem[:128<<10], b.mem[:128<<10])
			t.Logf("%d of %d packets sent again, %d timeouts", x.q.Stats().Retransmits, 64<<20/4096, a.dev.stats.timeouts.Load())
		})
	}
}

// BenchmarkUDPWrite is the rate of WRITEs between two devices of one process.
func BenchmarkUDPWrite(b *testing.B) {
	for _, mtu := range []verbs.MTU{1024, 4096} {
		for _, size := range []int{64, 4 << 10, 64 << 10, 512 << 10} {
			b.Run(fmt.Sprintf("mtu=%d/size=%d", mtu, size), func(b *testing.B) {
				n, m := udpPair(b, netip.MustParseAddr("127.0.0.1"))
				wake, notify := waker()
				x, y := connected(n, m, link{mtu: mtu, notifyA: notify})
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				benchStream(b, x, y, wake, size)
				b.ReportMetric(float64(x.q.Stats().Retransmits)*1000/float64(b.N), "resent/kop")
				b.ReportMetric(float64(n.dev.stats.timeouts.Load()), "timeouts")
			})
		}
	}
}

func benchStream(b *testing.B, e, to *end, wake chan struct{}, size int) {
	wrs := make([]verbs.SendWR, 16)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: verbs.OpWrite, SGL: e.sgl(0, size), RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
		if i%8 == 7 {
			wrs[i].Flags = verbs.Signaled
		}
	}
	last := []verbs.SendWR{wrs[7]}
	wc := make([]verbs.WC, 64)
	posted, pending := 0, 0
	for posted < b.N || pending > 0 {
		for posted < b.N && pending < 16 {
			k := min(8, b.N-posted)
			batch := wrs[8-k : 8]
			if k == 0 {
				batch = last
			}
			n, err := e.q.PostSend(batch)
			if err != nil || n != len(batch) {
				b.Fatal(n, err)
			}
			posted += n
			pending++
		}
		n, err := e.cq.Poll(wc)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range wc[:n] {
			if c.Status != 0 {
				b.Fatal(c.Status)
			}
		}
		pending -= n
		if n == 0 {
			_ = e.cq.Arm()
			if n, _ := e.cq.Poll(wc); n > 0 {
				pending -= n
				continue
			}
			<-wake
		}
	}
}

// BenchmarkUDPPingPong is half a round trip of a small SEND: sleeping, both
// sides wait for notifications; polling, both spin.
func BenchmarkUDPPingPong(b *testing.B) {
	for _, poll := range []bool{false, true} {
		b.Run(map[bool]string{false: "sleeping", true: "polling"}[poll], func(b *testing.B) {
			n, m := udpPair(b, netip.MustParseAddr("127.0.0.1"))
			wakeA, notifyA := waker()
			wakeB, notifyB := waker()
			x, y := connected(n, m, link{notifyA: notifyA, notifyB: notifyB})
			inline := make([]byte, 32)
			one := func(e *end, wake chan struct{}, wc []verbs.WC) {
				for i := 0; ; i++ {
					n, err := e.cq.Poll(wc)
					if err != nil || n > 0 && wc[0].Status != 0 {
						panic(fmt.Sprint(err, wc[0].Status))
					}
					switch {
					case n > 0:
						return
					case poll:
						runtime.Gosched()
					case i%2 == 0:
						_ = e.cq.Arm()
					default:
						<-wake
					}
				}
			}
			done := make(chan bool)
			run := func(e *end, wake chan struct{}, first bool) {
				recv := []verbs.RecvWR{{SGL: e.sgl(0, 32)}}
				send := []verbs.SendWR{{Op: verbs.OpSend, Inline: inline}}
				wc := make([]verbs.WC, 1)
				for range 8 {
					_, _ = e.q.PostRecv(recv)
				}
				for range b.N {
					_, _ = e.q.PostRecv(recv)
					if first {
						_, _ = e.q.PostSend(send)
					}
					one(e, wake, wc)
					if !first {
						_, _ = e.q.PostSend(send)
					}
				}
				done <- true
			}
			b.ReportAllocs()
			b.ResetTimer()
			go run(y, wakeB, false)
			go run(x, wakeA, true)
			<-done
			<-done
			b.ReportMetric(float64(x.q.Stats().RNRs+y.q.Stats().RNRs), "RNRs")
		})
	}
}
