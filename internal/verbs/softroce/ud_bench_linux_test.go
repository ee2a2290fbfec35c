package softroce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// BenchmarkDatagrams sends batches of datagrams over UDP sockets of this host, to a queue pair and to a group, and waits for
// each batch.
func BenchmarkDatagrams(b *testing.B) {
	const batch = 32
	for _, size := range []int{64, 1024} {
		for _, group := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%d/group=%v", size, group), func(b *testing.B) {
				p := New(&Config{})
				local := netip.MustParseAddr("127.0.0.1")
				x := newUDSide(b, resolveUD(b, p, verbs.CMIDAttr{Local: netip.AddrPortFrom(local, 0)}))
				y := newUDSide(b, resolveUD(b, p, verbs.CMIDAttr{Local: netip.AddrPortFrom(local, 0)}))
				to := &verbs.UDParam{AH: verbs.AHAttr{Local: local, Remote: local}, QPN: y.qp.Num(), QKey: verbs.UDPQKey}
				if group {
					var err error
					to, err = y.id.(verbs.UDCMID).Join(background(), &verbs.JoinAttr{Group: netip.MustParseAddr("239.255.71.9")})
					require.NoError(b, err)
				}
				ah, err := x.pd.CreateAH(&to.AH)
				require.NoError(b, err)
				var wrs []verbs.SendWR
				var recvs []verbs.RecvWR
				for i := range batch / 2 { // as many as the queues hold, twice
					wrs = append(wrs, verbs.SendWR{
						Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: x.mr.Addr(), Length: uint32(size), LKey: x.mr.LKey()}}, AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey,
					})
					recvs = append(recvs, verbs.RecvWR{SGL: []verbs.SGE{{Addr: y.mr.Addr() + uint64(i*2048), Length: 2048, LKey: y.mr.LKey()}}})
				}
				wcs := make([]verbs.WC, batch)
				b.ReportAllocs()
				for n := 0; b.Loop(); n++ {
					if _, err := y.qp.PostRecv(recvs); err != nil {
						b.Fatal(err)
					}
					if _, err := x.qp.PostSend(wrs); err != nil {
						b.Fatal(err)
					}
					for got := 0; got < len(recvs); {
						k, err := y.cq.Poll(wcs)
						if err != nil {
							b.Fatal(err)
						}
						got += k
					}
				}
				b.ReportMetric(float64(b.N*len(recvs))/b.Elapsed().Seconds(), "datagrams/s")
				require.NoError(b, ah.Close())
				x.close()
				y.close()
				unused(b, p)
			})
		}
	}
}
