package softroce

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestJoins: where packets of one length that were sent together have arrived, silence is not laid to that.
func TestJoins(t *testing.T) {
	acked := func(p *peer) {
		p.take()
		p.send(ack(wire.PSNAdd(p.end.q.rc.max, psnMask)))
		synctest.Wait()
	}
	for _, c := range []struct {
		name   string
		f      func(p *peer)
		proved bool
	}{
		{"long message", func(p *peer) { p.end.send(p.end.write(1, 0, 5*256)); acked(p) }, true},
		{"not acknowledged", func(p *peer) { p.end.send(p.end.write(1, 0, 5*256)) }, false},
		{"acknowledged before", func(p *peer) {
			p.end.send(p.end.write(1, 0, 5*256))
			p.send(ack(endPSN + 1))
		}, false},
		{"short messages", func(p *peer) {
			for i := range uint64(5) {
				p.end.send(p.end.write(i, 0, 256))
			}
			acked(p)
		}, false},
		{"repeated", func(p *peer) {
			p.end.send(p.end.write(1, 0, 5*256))
			for p.end.dev.stats.timeouts.Load() < 4 {
				time.Sleep(time.Millisecond)
			}
			acked(p)
			p.end.send(p.end.write(1, 0, 5*256))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPeer(t, link{mtu: 256})
				c.f(p)
				require.Equal(t, c.proved, p.end.q.rc.joins.proved)
				require.Equal(t, c.proved, p.end.q.rc.joins.patience() > 2)
			})
		})
	}
}
