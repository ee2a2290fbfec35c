package verbstest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

const (
	mixMessages = 1500
	mixRoom     = 1 << 17 // bytes that the peer may write
	mixSlot     = 1 << 15 // bytes of a receive buffer
	mixSlots    = 32
)

// mixer is one side of testMix.
type mixer struct {
	*end
	peer *mixer
	r    *rand.Rand

	src   span // what it sends, never changed
	dst   span // what the peer writes to
	model []byte
	slots []span

	sent, outstanding, credits int
	want                       []mixWant // messages that are to come, in order
}

type mixWant struct {
	op   verbs.Opcode
	imm  uint32
	data []byte
}

func newMixer(e *end, seed uint64) *mixer {
	x := &mixer{
		end: e, r: rand.New(rand.NewPCG(seed, 1)), credits: mixSlots,
		src: e.span(1 << 16).fill(seed), dst: e.span(mixRoom),
	}
	x.model = append([]byte(nil), x.dst.bytes()...)
	for i := range mixSlots {
		x.slots = append(x.slots, e.span(mixSlot))
		e.recv(verbs.RecvWR{ID: uint64(i), SGL: x.slots[i].sgl()})
	}
	return x
}

// step sends one message, if it may.
func (x *mixer) step() bool {
	if x.sent == mixMessages || x.outstanding == 32 || x.credits == 0 {
		return false
	}
	x.sent++
	x.outstanding++
	n := x.r.IntN(mixSlot)
	if x.r.IntN(2) == 0 {
		n = x.r.IntN(100)
	}
	off, at := x.r.IntN(x.src.n-n), x.r.IntN(mixRoom-n)
	op := transferOps[x.r.IntN(len(transferOps))]
	data := x.src.bytes()[off : off+n]
	if op == verbs.OpWrite || op == verbs.OpWriteWithImm {
		copy(x.peer.model[at:], data)
	}
	if op != verbs.OpWrite {
		x.credits--
		x.peer.want = append(x.peer.want, mixWant{op, uint32(x.sent), data})
	}
	x.send(verbs.SendWR{
		ID: uint64(x.sent), Op: op, Flags: verbs.Signaled, Imm: uint32(x.sent),
		SGL:        []verbs.SGE{{Addr: x.src.addr() + uint64(off), Length: uint32(n), LKey: x.mr.LKey()}},
		RemoteAddr: x.peer.dst.addr() + uint64(at), RKey: x.peer.mr.RKey(),
	})
	return true
}

// take checks a completion.
func (x *mixer) take(wc verbs.WC) {
	t := x.t
	require.Equal(t, verbs.Success, wc.Status, "%+v", wc)
	if wc.Op == verbs.WCSend || wc.Op == verbs.WCWrite {
		x.outstanding--
		return
	}
	require.NotEmpty(t, x.want, "%+v", wc)
	w := x.want[0]
	x.want = x.want[1:]
	require.Equal(t, uint32(len(w.data)), wc.ByteLen)
	if w.op != verbs.OpSend {
		require.Equal(t, w.imm, wc.Imm)
	}
	buf := x.slots[wc.ID]
	if w.op != verbs.OpWriteWithImm {
		require.Equal(t, w.data, buf.bytes()[:len(w.data)])
	}
	x.recv(verbs.RecvWR{ID: wc.ID, SGL: buf.sgl()})
	x.peer.credits++
}

// drain takes what has completed.
func (x *mixer) drain() bool {
	require.NoError(x.t, x.poll())
	wcs := x.ready
	x.ready = nil
	for _, wc := range wcs {
		x.take(wc)
	}
	return len(wcs) > 0
}

func (x *mixer) idle() bool { return x.outstanding == 0 && len(x.want) == 0 }

// testMix keeps both directions busy with operations of every kind and size, and
// compares memory with a model of it.
func testMix(s *suite, t *testing.T) {
	a, b := s.pair(t, func(o *options) { o.mem = 1<<18 + mixSlots*(mixSlot+2*guardLen) })
	x, y := newMixer(a, 1), newMixer(b, 2)
	x.peer, y.peer = y, x
	for x.sent < mixMessages || y.sent < mixMessages || !x.idle() || !y.idle() {
		progress := x.step()
		progress = y.step() || progress
		progress = x.drain() || progress
		progress = y.drain() || progress
		if progress {
			continue
		}
		// Park at a side to which something is on its way.
		z := x
		if x.idle() {
			z = y
		}
		z.take(z.wait(1)[0])
	}
	for _, z := range []*mixer{x, y} {
		z.dst.requireBytes(t, z.model)
		z.src.requireGuards(t)
		for _, buf := range z.slots {
			buf.requireGuards(t)
		}
	}
}
