package verbstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// A shared receive queue whose peers are several processes.

// peers makes connections from each of the peers to the pool.
func (p *pool) peers(opts ...option) (from, to []*end) {
	if len(p.s.Others) == 0 {
		p.t.Skip("there is one peer")
	}
	for i := range perPeer * (1 + len(p.s.Others)) {
		a, b := p.join(append([]option{func(o *options) { o.from, o.mem = p.from(i), 1<<16 }}, opts...)...)
		from, to = append(from, a), append(to, b)
	}
	return from, to
}

const perPeer = 2 // connections

// from is the peer of connection i.
func (p *pool) from(i int) verbs.Provider {
	return append([]verbs.Provider{p.s.Active}, p.s.Others...)[i/perPeer]
}

// testSRQPeers lets all peers send at once, as many messages as there are receives: each of those takes one.
func testSRQPeers(s *suite, t *testing.T) {
	const n, size = 12, 3000
	p := s.pool(t, n)
	from, to := p.peers()
	for round := range uint64(20) {
		p.reset()
		posted := map[uint64]span{}
		for id := range uint64(n) {
			posted[id] = p.postSpan(id, size)
		}
		want := map[string]int{}
		for i, a := range from {
			a.reset()
			for k := i; k < n; k += len(from) {
				src := a.span(size - k).fill(round*n + uint64(k))
				want[string(src.bytes())] = i
				a.send(verbs.SendWR{ID: uint64(k), Op: verbs.OpSend, Flags: verbs.Signaled, SGL: src.sgl()})
			}
		}
		for _, wc := range p.wait(n) {
			require.Equal(t, verbs.Success, wc.Status)
			dst, ok := posted[wc.ID]
			require.True(t, ok, "receive %d twice", wc.ID)
			delete(posted, wc.ID)
			got := string(dst.bytes()[:wc.ByteLen])
			i, ok := want[got]
			require.True(t, ok, "a message twice, or one that nobody sent")
			require.Equal(t, to[i].qp.Num(), wc.QPN)
			dst.requireGuards(t)
			delete(want, got)
		}
		for i, a := range from {
			for k := i; k < n; k += len(from) {
				a.waitID(uint64(k), verbs.Success)
			}
		}
	}
	p.quiet()
}

// testSRQPeersInTurn lets one peer after the other take all receives, whomever they were meant for before.
func testSRQPeersInTurn(s *suite, t *testing.T) {
	const n = 5
	p := s.pool(t, n)
	from, to := p.peers()
	for i, a := range from {
		p.reset()
		require.NoError(t, p.srq.ArmLimit(2))
		var posted []span
		for id := range uint64(n) {
			posted = append(posted, p.postSpan(id, 8))
		}
		for k := range uint64(n) {
			if k == n-1 {
				p.told()
			}
			a.send(verbs.SendWR{ID: k, Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: uint32(k), Inline: []byte("in turn.")})
			a.waitID(k, verbs.Success)
			wc := p.wait(1)[0]
			require.Equal(t, verbs.Success, wc.Status)
			require.Equal(t, to[i].qp.Num(), wc.QPN)
			require.EqualValues(t, k, wc.Imm)
			posted[wc.ID].requireBytes(t, []byte("in turn."))
		}
	}
	p.quiet()
}

// testSRQPeersRNR lets all peers meet an empty queue: who waits gets a receive when there is one, and who does not fails.
func testSRQPeersRNR(s *suite, t *testing.T) {
	p := s.pool(t, 64)
	from, _ := p.peers()
	for round := range uint64(3) {
		for _, a := range from {
			a.send(verbs.SendWR{ID: round, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("waits")})
		}
		p.quiet()
		for i := range from {
			p.postSpan(uint64(i), 8)
		}
		for range from {
			require.Equal(t, verbs.Success, p.wait(1)[0].Status)
		}
		for _, a := range from {
			a.waitID(round, verbs.Success)
		}
	}
	hasty, _ := p.peers(func(o *options) { o.param.RNRRetryCount = 0 })
	for _, a := range hasty {
		a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("fails")})
		a.waitID(1, verbs.RNRRetryExcErr)
	}
	p.postSpan(9, 8)
	from[0].send(verbs.SendWR{ID: 7, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("goes on")})
	from[0].waitID(7, verbs.Success)
	require.EqualValues(t, 9, p.wait(1)[0].ID)
}

// testSRQPeersGivenUp: one who has asked for a receive, and waits for none any more, keeps none from others, whether these come before
// there is one or afterwards.
func testSRQPeersGivenUp(s *suite, t *testing.T) {
	p := s.pool(t, 64)
	from, _ := p.peers()
	id := uint64(0)
	for _, before := range []bool{false, true} {
		for pair := range len(from) * len(from) / (perPeer * perPeer) {
			i, j := pair/(len(from)/perPeer)*perPeer, pair%(len(from)/perPeer)*perPeer
			for range 2 {
				id++
				hasty, _ := p.join(func(o *options) { o.from, o.mem, o.param.RNRRetryCount = p.from(j), 1<<16, 0 })
				hasty.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("fails")})
				hasty.waitID(1, verbs.RNRRetryExcErr)
				wr := verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("goes on")}
				if before {
					from[i].send(wr)
					p.quiet()
				}
				p.postSpan(id, 8)
				if !before {
					from[i].send(wr)
				}
				from[i].waitID(id, verbs.Success)
				require.Equal(t, id, p.wait(1)[0].ID)
			}
		}
	}
}

// testSRQPeersGoing closes the connections of one peer after the other, from either end. What was not taken is there for the rest.
func testSRQPeersGoing(s *suite, t *testing.T) {
	const n = 8
	p := s.pool(t, n)
	from, to := p.peers()
	posted := 0
	for i := range from {
		p.reset()
		for ; posted < n; posted++ {
			p.postSpan(uint64(posted), 64)
		}
		for _, a := range from[i:] {
			a.send(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("still here")})
			a.waitID(1, verbs.Success)
			require.Equal(t, verbs.Success, p.wait(1)[0].Status)
			posted--
		}
		gone := from[i]
		if i%2 == 0 {
			gone = to[i]
		}
		closeIt(t, "QP", gone.qp)
		closeIt(t, "CMID", gone.id)
		if last := i == len(from)-1; last {
			break
		}
		a := from[len(from)-1]
		for ; posted > 0; posted-- { // all that is left
			a.send(verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte("the rest")})
			a.waitID(2, verbs.Success)
			require.Equal(t, verbs.Success, p.wait(1)[0].Status)
		}
	}
	p.quiet()
}
