package softroce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// The memory of a node in a transfer: what it sends and the peer reads, what the peer writes, what it fetches from the
// peer, the words of the peer's atomics, and receives.
const (
	outMem   = 256 << 10
	inMem    = 256 << 10
	fetchAt  = outMem + inMem
	fetchMem = 120 << 10
	wordsAt  = fetchAt + fetchMem
	wordsMem = 8 << 10
	slotsAt  = wordsAt + wordsMem
	slotSize = 8 << 10
	slots    = (nodeMem - slotsAt) / slotSize
)

// op is a request of a transfer, and what comes of it.
type op struct {
	wr     verbs.SendWR
	target int // offset in the peer's memory in
	data   []byte
}

func (o *op) consumes() bool { return o.wr.Op != verbs.OpWrite && !responds(o.wr.Op) }

// noise is what transfers send parts of.
var noise = sync.OnceValue(func() []byte { return pattern(1, 2*outMem) })

var planOps = []verbs.Opcode{
	verbs.OpSend, verbs.OpSendWithImm, verbs.OpWrite, verbs.OpWriteWithImm, verbs.OpRead, verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap,
	verbs.OpFlush, verbs.OpAtomicWrite,
}

// effects are what a direction of a transfer leaves in memory.
type effects struct {
	in, words []byte // at the peer
	fetched   []byte
}

// plan draws the requests of one direction. Both nodes have filled what they send.
func plan(r *rand.Rand, from, to *node, n int) (ops []op, e effects) {
	e = effects{in: make([]byte, inMem), words: make([]byte, wordsMem), fetched: make([]byte, fetchMem)}
	in := e.in
	for i := range n {
		var o op
		o.wr.ID = uint64(i)
		o.wr.Op = planOps[r.IntN(len(planOps))]
		if r.IntN(3) == 0 || i == n-1 {
			o.wr.Flags = verbs.Signaled
		}
		if r.IntN(5) == 0 {
			o.wr.Flags |= verbs.Fence
		}
		if responds(o.wr.Op) {
			planFetch(r, from, to, &o, &e)
			ops = append(ops, o)
			continue
		}
		o.wr.Imm = r.Uint32()
		size := r.IntN(slotSize + 1)
		if r.IntN(3) == 0 {
			size = r.IntN(64)
		}
		off := r.IntN(outMem - size)
		o.data = from.mem[off : off+size]
		switch {
		case size <= 64 && r.IntN(2) == 0:
			o.wr.Inline = bytes.Clone(o.data)
			if size == 0 {
				o.wr.Inline = []byte{}
			}
		case r.IntN(2) == 0:
			cut := r.IntN(size + 1)
			o.wr.SGL = []verbs.SGE{from.sge(off, cut), from.sge(off+cut, size-cut)}
		default:
			o.wr.SGL = from.sgl(off, size)
		}
		if o.wr.Op == verbs.OpWrite || o.wr.Op == verbs.OpWriteWithImm {
			o.target = r.IntN(inMem - size)
			copy(in[o.target:], o.data)
			o.wr.RemoteAddr, o.wr.RKey = to.mr.Addr()+outMem+uint64(o.target), to.mr.RKey()
		}
		ops = append(ops, o)
	}
	return ops, e
}

// planFetch draws a READ of what the peer sends, an atomic on one of a few words of it or an ATOMIC_WRITE to one, or a FLUSH.
func planFetch(r *rand.Rand, from, to *node, o *op, e *effects) {
	o.wr.RKey = to.mr.RKey()
	if o.wr.Op == verbs.OpRead {
		size := r.IntN(4 * slotSize)
		if r.IntN(3) == 0 {
			size = r.IntN(64)
		}
		off, at := r.IntN(outMem-size), r.IntN(fetchMem-size)
		o.data = to.mem[off : off+size]
		copy(e.fetched[at:], o.data)
		cut := r.IntN(size + 1)
		o.wr.SGL = []verbs.SGE{from.sge(fetchAt+at, cut), from.sge(fetchAt+at+cut, size-cut)}
		o.wr.RemoteAddr = to.mr.Addr() + uint64(off)
		return
	}
	if o.wr.Op == verbs.OpFlush {
		off := r.IntN(nodeMem)
		o.wr.RemoteAddr, o.wr.FlushLength = to.mr.Addr()+uint64(off), uint32(r.IntN(nodeMem-off))
		o.wr.FlushLevel = verbs.FlushLevel(r.IntN(2))
		o.wr.FlushType = []verbs.Access{verbs.FlushGlobal, verbs.FlushPersistent, verbs.FlushGlobal | verbs.FlushPersistent}[r.IntN(3)]
		return
	}
	off, at := 8*r.IntN(4), r.IntN(fetchMem-8)
	word := e.words[off : off+8]
	if o.wr.Op == verbs.OpAtomicWrite {
		at := r.IntN(outMem - 8)
		cut := r.IntN(9)
		o.wr.SGL = []verbs.SGE{from.sge(at, cut), from.sge(at+cut, 8-cut)}
		o.wr.RemoteAddr = to.mr.Addr() + uint64(wordsAt+off)
		copy(word, from.mem[at:])
		return
	}
	original := binary.NativeEndian.Uint64(word)
	o.wr.SwapAdd = r.Uint64()
	switch {
	case o.wr.Op == verbs.OpFetchAdd:
		binary.NativeEndian.PutUint64(word, original+o.wr.SwapAdd)
	case r.IntN(2) == 0:
		o.wr.Compare = original
		binary.NativeEndian.PutUint64(word, o.wr.SwapAdd)
	default:
		o.wr.Compare = original + 1
	}
	binary.NativeEndian.PutUint64(e.fetched[at:], original)
	o.data = word // its length
	o.wr.SGL = from.sgl(fetchAt+at, 8)
	o.wr.RemoteAddr = to.mr.Addr() + uint64(wordsAt+off)
}

// drive runs one end of a transfer until all of out is done and all of in has
// arrived, with at most ready receives posted.
func drive(e *end, r *rand.Rand, wake chan struct{}, out, in []op, ready int) error {
	var arriving []*op
	for i := range in {
		if in[i].consumes() {
			arriving = append(arriving, &in[i])
		}
	}
	posted, received, sent := 0, 0, 0
	done := -1 // the last request that completed
	last := len(out) - 1
	for received < len(arriving) || done < last {
		// Receives come in fits and starts, so that some requests meet none.
		for k := r.IntN(ready + 1); k > 0 && posted < len(arriving) && posted-received < ready; k-- {
			wr := verbs.RecvWR{ID: uint64(posted), SGL: e.sgl(slotsAt+posted%slots*slotSize, slotSize)}
			if _, err := e.q.PostRecv([]verbs.RecvWR{wr}); err != nil {
				return err
			}
			posted++
		}
		for sent < len(out) {
			wrs := []verbs.SendWR{out[sent].wr}
			if sent+1 < len(out) {
				wrs = append(wrs, out[sent+1].wr)
			}
			n, err := e.q.PostSend(wrs)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			sent += n
		}
		var wc [7]verbs.WC
		n, err := e.cq.Poll(wc[:])
		if err != nil {
			return err
		}
		for _, c := range wc[:n] {
			if c.Status != verbs.Success {
				return fmt.Errorf("request %d: %w", c.ID, c.Status)
			}
			switch c.Op {
			case verbs.WCRecv, verbs.WCRecvWithImm:
				if err := arrived(e, arriving, received, &c); err != nil {
					return err
				}
				received++
			default:
				for done++; out[done].wr.Flags&verbs.Signaled == 0; done++ {
				}
				if uint64(done) != c.ID {
					return fmt.Errorf("request %d completed where %d was due", c.ID, done)
				}
				if o := &out[done]; fetches(o.wr.Op) && (int(c.ByteLen) != len(o.data) || c.Op != o.wr.Op.Completion()) {
					return fmt.Errorf("request %d, %v of %d bytes: %+v", done, o.wr.Op, len(o.data), c)
				}
			}
		}
		if n > 0 {
			continue
		}
		if err := e.cq.Arm(); err != nil {
			return err
		}
		if n, err := e.cq.Poll(nil); n != 0 || err != nil {
			return fmt.Errorf("poll of nothing: %d, %w", n, err)
		}
		select {
		case <-wake:
		case <-time.After(2 * time.Millisecond): // receives may be due
		}
	}
	return nil
}

func arrived(e *end, arriving []*op, i int, c *verbs.WC) error {
	if c.ID != uint64(i) {
		return fmt.Errorf("receive %d completed where %d was due", c.ID, i)
	}
	o := arriving[i]
	imm := o.wr.Op != verbs.OpSend
	if imm != (c.Flags == verbs.WCWithImm) || imm && c.Imm != o.wr.Imm || int(c.ByteLen) != len(o.data) {
		return fmt.Errorf("receive %d: %+v instead of %v of %d bytes, %#x", i, *c, o.wr.Op, len(o.data), o.wr.Imm)
	}
	if o.wr.Op == verbs.OpWriteWithImm {
		return nil
	}
	slot := e.mem[slotsAt+i%slots*slotSize:]
	if !bytes.Equal(slot[:len(o.data)], o.data) {
		return fmt.Errorf("receive %d: wrong bytes", i)
	}
	return nil
}

// transfer runs n random requests in both directions and compares every byte. It
// returns the simulated time.
func transfer(t *testing.T, seed uint64, net simnet.Options, l link, ready, n int) (took time.Duration) {
	bubble(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 1))
		network, a, b := pair(t, seed, net)
		wakeA, wakeB := make(chan struct{}, 1), make(chan struct{}, 1)
		ring := func(c chan struct{}) func() {
			return func() {
				select {
				case c <- struct{}{}:
				default:
				}
			}
		}
		l.notifyA, l.notifyB = ring(wakeA), ring(wakeB)
		l.attr.MaxSendWR, l.attr.MaxRecvWR = 1+r.IntN(64), slots
		l.rd = uint8(1 + r.IntN(6))
		x, y := connected(a, b, l)
		for _, z := range []*node{a, b} {
			copy(z.mem[:outMem], noise()[r.IntN(outMem):])
			disk := rand.New(rand.NewPCG(seed, 2))
			z.persist = func([]byte) error { // one connection's FLUSHes are made one after the other
				time.Sleep(time.Duration(disk.IntN(5)) * time.Millisecond)
				return nil
			}
		}
		toB, ofB := plan(r, a, b, n)
		toA, ofA := plan(r, b, a, n)

		start := time.Now()
		var wg sync.WaitGroup
		var errA, errB error
		ra, rb := rand.New(rand.NewPCG(seed, 2)), rand.New(rand.NewPCG(seed, 3))
		wg.Go(func() { errA = drive(x, ra, wakeA, toB, toA, ready) })
		wg.Go(func() { errB = drive(y, rb, wakeB, toA, toB, ready) })
		wg.Wait()
		took = time.Since(start)
		require.NoError(t, errA)
		require.NoError(t, errB)
		for _, z := range []struct {
			from, to *node
			e        effects
		}{{a, b, ofB}, {b, a, ofA}} {
			require.Equal(t, z.e.in, z.to.mem[outMem:outMem+inMem])
			require.Equal(t, z.e.words, z.to.mem[wordsAt:wordsAt+wordsMem])
			require.Equal(t, z.e.fetched, z.from.mem[fetchAt:fetchAt+fetchMem])
		}
		// Nothing comes late, or twice.
		time.Sleep(time.Minute)
		require.Empty(t, x.completions())
		require.Empty(t, y.completions())
		for _, e := range []*end{x, y} {
			require.Zero(t, e.q.rc.cc.inflight)
			require.Zero(t, e.q.rc.inflight)
		}
		t.Logf("%v simulated, %d packets, %d lost; retransmitted %d and %d, RNR NAKs %d and %d, timeouts %d and %d",
			took, network.Stats().Sent, network.Stats().Lost, x.q.Stats().Retransmits, y.q.Stats().Retransmits,
			x.q.Stats().RNRs, y.q.Stats().RNRs, a.dev.stats.timeouts.Load(), b.dev.stats.timeouts.Load())
	})
	return took
}

func TestTransfers(t *testing.T) {
	us, ms := time.Microsecond, time.Millisecond
	for i, c := range []struct {
		name  string
		net   simnet.Options
		link  link
		ready int // receives; 0: as many as there is memory for
	}{
		{"clean", simnet.Options{}, link{}, 0},
		{"delay", simnet.Options{Delay: ms}, link{mtu: 4096}, 0},
		{"jitter", simnet.Options{Delay: 50 * us, Jitter: 100 * us}, link{mtu: 256}, 0},
		{"loss 1%", simnet.Options{Delay: 30 * us, Loss: 0.01}, link{mtu: 1024}, 0},
		{"loss 5%", simnet.Options{Delay: 30 * us, Loss: 0.05}, link{mtu: 1024}, 0},
		{"loss 20%", simnet.Options{Delay: 30 * us, Loss: 0.2}, link{mtu: 2048}, 0},
		{"loss 20%, far", simnet.Options{Delay: 5 * ms, Loss: 0.2}, link{mtu: 4096}, 0},
		{"dup", simnet.Options{Delay: 30 * us, Jitter: 500 * us, Dup: 0.3}, link{mtu: 512}, 0},
		{"reorder", simnet.Options{Delay: 30 * us, Jitter: 20 * us, Reorder: 0.1}, link{mtu: 1024}, 0},
		{"corrupt", simnet.Options{Delay: 30 * us, Corrupt: 0.05}, link{mtu: 1024}, 0},
		{"few receives", simnet.Options{Delay: 30 * us}, link{mtu: 1024}, 2},
		{"few receives and loss", simnet.Options{Delay: 30 * us, Loss: 0.1, Dup: 0.1}, link{mtu: 1024}, 3},
		{"everything", simnet.Options{Delay: 100 * us, Jitter: 200 * us, Loss: 0.1, Dup: 0.1, Reorder: 0.1, Corrupt: 0.05}, link{mtu: 1024}, 10},
		{"narrow", simnet.Options{Delay: 100 * us, Rate: 10e6, Queue: 20_000, Loss: 0.01}, link{mtu: 1024}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.link.psnA, c.link.psnB = 0xFFFFFF-uint32(100*i), 0x7FFFFF // wrap on the way
			if c.ready == 0 {
				c.ready = slots
			}
			took := transfer(t, uint64(i), c.net, c.link, c.ready, 300)
			require.Less(t, took, 10*time.Second, "repairs are slow")
		})
	}
}

// FuzzTransfer lets the fuzzer choose the network, for few requests: many networks tell more.
func FuzzTransfer(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, uint8(seed*7), uint8(seed*3), uint8(seed*5), uint8(seed), uint16(seed*50), uint16(seed*30), uint8(seed), uint8(seed+1))
	}
	f.Fuzz(func(t *testing.T, seed uint64, loss, dup, reorder, corrupt uint8, delay, jitter uint16, mtu, ready uint8) {
		p := func(x uint8) float64 { return 0.2 * float64(x) / 255 }
		r := rand.New(rand.NewPCG(seed, 4))
		transfer(t, seed, simnet.Options{
			Loss: p(loss), Dup: p(dup), Reorder: p(reorder), Corrupt: p(corrupt) / 4,
			Delay: time.Duration(delay) * time.Microsecond, Jitter: time.Duration(jitter) * time.Microsecond,
		}, link{mtu: verbs.MTU(256 << (mtu % 5)), psnA: r.Uint32N(1 << 24), psnB: r.Uint32N(1 << 24)}, 1+int(ready)%slots, 16)
	})
}
