package softroce

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestEndlessRNRRetriesCanBeStopped: a SEND to a queue pair of the same device, or to the sender itself, meets no receive and is
// repeated without end (RNR retry count 7). Close and the error state stop it in between, at either end.
func TestEndlessRNRRetriesCanBeStopped(t *testing.T) {
	for name, stop := range map[string]func(x, y *end){
		"close of the sender":          func(x, _ *end) { require.NoError(x.t, x.q.Close()) },
		"error state of the sender":    func(x, _ *end) { require.NoError(x.t, x.q.ToError()) },
		"close of the receiver":        func(_, y *end) { require.NoError(y.t, y.q.Close()) },
		"error state of the receiver":  func(_, y *end) { require.NoError(y.t, y.q.ToError()) },
		"both are closed, sender last": func(x, y *end) { require.NoError(x.t, y.q.Close()); require.NoError(x.t, x.q.Close()) },
	} {
		for _, self := range []bool{false, true} {
			t.Run(name+map[bool]string{false: "", true: ", which is the sender"}[self], func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					network := simnet.New(simnet.Seed(t, 1), simnet.Options{})
					n := newNode(t, nil, network.Host(addrA), addrA)
					l := link{rnr: 7, retry: 3, timeout: 14, attr: verbs.QPInitAttr{MinRNRTimer: 14}}
					l.defaults()
					x := n.newEnd(l.attr, l.depth, nil)
					y := x
					if self {
						require.NoError(t, x.q.connect(&rcAttr{
							path: newPath(n.addr, n.addr), destQPN: x.q.num, sqPSN: 7, rqPSN: 7,
							mtu: l.mtu, ackTimeout: l.timeout, retryCount: l.retry, rnrRetry: l.rnr,
						}))
					} else {
						y = n.newEnd(l.attr, l.depth, nil)
						x.connect(y, l)
					}
					var sent atomic.Int64
					network.Filter(func(*simnet.Frame) bool { sent.Add(1); return false })
					x.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Inline: []byte("x")})
					time.Sleep(5 * time.Second)
					require.Empty(t, x.completions(), "it goes on")
					require.Greater(t, sent.Load(), int64(100))

					stop(x, y)
					time.Sleep(time.Minute)
					was := sent.Load()
					time.Sleep(time.Hour)
					require.Equal(t, was, sent.Load(), "it is over")
					got, want := x.completions(), 1
					if errors.Is(x.q.ToError(), net.ErrClosed) {
						want = 0
					}
					require.Len(t, got, want)
					for _, wc := range got {
						require.NotZero(t, wc.Status)
					}
				})
			})
		}
	}
}
