package ring

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// message is a WRITE WITH IMMEDIATE on its way.
type message struct {
	imm  uint32
	addr uint64
	key  uint32
	data []byte
}

// pattern is the stream that tests send.
func pattern(off, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		x := uint32(off + i)
		b[i] = byte(x*2654435761>>24) ^ byte(x)
	}
	return b
}

// cReceiver is the receiving half of librdmacm, as reference of rs_give_credits and rrecv.
type cReceiver struct {
	ring                 []byte
	half, free, next     int // bytes of half, free to publish, offset of the half to publish
	q                    int
	seq, comp            uint16 // rseq_no, rseq_comp
	entries, entry       int
	queued               []int // messages not yet read
	pos, inRing, partial int
	got                  []byte
	writable             [][2]int // published and not yet received: offset, length
}

const cBase, cKey = 0x7f0000001000, 77

func newCReceiver(size, q, entries int) *cReceiver {
	r := &cReceiver{ring: make([]byte, size), half: size / 2, q: q, comp: uint16(q / 2), entries: entries, entry: 1}
	r.free, r.next = r.half, r.half
	r.writable = [][2]int{{0, r.half}}
	return r
}

func (r *cReceiver) take(t *rapid.T, m message) {
	typ, n := parseImm(m.imm)
	if typ != immData || int(n) != len(m.data) || n == 0 {
		t.Fatalf("data message %#x with %d bytes", m.imm, len(m.data))
	}
	off := int(m.addr - cBase)
	if m.key != cKey || len(r.writable) == 0 || off != r.writable[0][0] || int(n) > r.writable[0][1] {
		t.Fatalf("write of %d at %d, but writable are %v", n, off, r.writable)
	}
	copy(r.ring[off:], m.data)
	r.writable[0][0] += int(n)
	r.writable[0][1] -= int(n)
	if r.writable[0][1] == 0 {
		r.writable = r.writable[1:]
	}
	r.queued = append(r.queued, int(n))
	if len(r.queued) > r.q {
		t.Fatalf("%d messages unread, %d receives", len(r.queued), r.q)
	}
	r.inRing += int(n)
}

// read is rrecv of n bytes.
func (r *cReceiver) read(n int) {
	for n > 0 && len(r.queued) > 0 {
		k := min(n, r.queued[0]-r.partial, len(r.ring)&^1-r.pos)
		r.got = append(r.got, r.ring[r.pos:r.pos+k]...)
		r.pos = (r.pos + k) % (2 * r.half)
		r.partial += k
		r.free += k
		n -= k
		if r.partial == r.queued[0] {
			r.partial = 0
			r.queued = r.queued[1:]
			r.seq++
		}
	}
}

// process is rs_give_credits.
func (r *cReceiver) process(t *rapid.T) (ms []message) {
	for r.free >= r.half || int16(r.seq-r.comp) >= 0 {
		m := message{imm: immSGL<<immShift | uint32(r.seq) + uint32(r.q)} // up to 17 bits
		if r.free >= r.half {
			d := descriptor{addr: cBase + uint64(r.next), key: cKey, length: uint32(r.half)}
			m.addr, m.data = uint64(r.entry*descriptorLen), d.append(nil, order(false))
			r.writable = append(r.writable, [2]int{r.next, r.half})
			if len(r.writable) > 2 {
				t.Fatalf("model published too much")
			}
			r.free -= r.half
			if r.next += r.half; r.next >= 2*r.half {
				r.next = 0
			}
			r.entry = (r.entry + 1) % r.entries
		}
		r.comp = r.seq + uint16(r.q/2)
		ms = append(ms, m)
	}
	return ms
}

// TestSenderToC: the window against C's halves and 16-bit limits.
func TestSenderToC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		half := rapid.IntRange(1, 5000).Draw(t, "half")
		q := rapid.IntRange(16, 400).Draw(t, "q")
		r := newCReceiver(2*half, q, sglEntries)
		var w window
		w.init(uint16(q), descriptor{addr: cBase, key: cKey, length: uint32(half)})
		// The counters wrap at 65536: begin near it.
		seq := rapid.Uint16().Draw(t, "seq")
		w.sent, w.limit, r.seq, r.comp = seq, seq+uint16(q), seq, seq+uint16(q/2)

		total := rapid.IntRange(1, 60000).Draw(t, "total")
		maxMsg := rapid.IntRange(1, 6000).Draw(t, "max message")
		sent := 0
		var toC, toUs []message
		send := func(want int) bool {
			n := min(want, total-sent, int(w.room()))
			if n == 0 {
				return false
			}
			addr, key := w.take(uint32(n))
			toC = append(toC, message{imm: imm(immData, uint32(n)), addr: addr, key: key, data: pattern(sent, n)})
			sent += n
			return true
		}
		deliverC := func() {
			for ; len(toC) > 0; toC = toC[1:] {
				r.take(t, toC[0])
			}
		}
		deliverUs := func() {
			for ; len(toUs) > 0; toUs = toUs[1:] {
				m := toUs[0]
				if len(m.data) > 0 {
					if int(m.addr) != w.entry*descriptorLen {
						t.Fatalf("descriptor in entry %d, expected in %d", m.addr/descriptorLen, w.entry)
					}
					require.NoError(t, w.publish(parseDescriptor(m.data, order(false))))
				}
				w.setLimit(m.imm & immValue)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send":       func(t *rapid.T) { send(rapid.IntRange(1, maxMsg).Draw(t, "n")) },
			"deliver C":  func(*rapid.T) { deliverC() },
			"deliver us": func(*rapid.T) { deliverUs() },
			"C reads":    func(t *rapid.T) { r.read(rapid.IntRange(1, 3*half).Draw(t, "n")) },
			"C polls":    func(t *rapid.T) { toUs = append(toUs, r.process(t)...) },
			"":           func(*rapid.T) {},
		})
		for rounds := 0; len(r.got) < total; rounds++ {
			before := len(r.got)
			for send(maxMsg) {
			}
			deliverC()
			r.read(1 << 20)
			toUs = append(toUs, r.process(t)...)
			deliverUs()
			if len(r.got) == before && w.room() == 0 {
				t.Fatalf("stuck at %d of %d: %+v", before, total, w)
			}
		}
		if !bytes.Equal(r.got, pattern(0, total)) {
			t.Fatal("bytes differ")
		}
	})
}

// cSender is the sending half of librdmacm.
type cSender struct {
	sgl       []descriptor
	cur       int
	seq, comp uint16
	sent      int
}

func (s *cSender) room() int {
	if s.seq == s.comp {
		return 0
	}
	return int(s.sgl[s.cur].length)
}

func (s *cSender) send(n int) (m message) {
	n = min(n, s.room())
	d := &s.sgl[s.cur]
	m = message{imm: imm(immData, uint32(n)), addr: d.addr, key: d.key, data: pattern(s.sent, n)}
	d.addr += uint64(n)
	d.length -= uint32(n)
	s.sent += n
	s.seq++
	if d.length == 0 {
		s.cur = (s.cur + 1) % len(s.sgl)
	}
	return m
}

// TestCToReceiver: C's sender against segments that grow, shrink and are lent out.
func TestCToReceiver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SampledFrom([]int{2, 2, 3, 4}).Draw(t, "entries")
		limit := rapid.SampledFrom([]int{8 << 10, 20000, 64 << 10, 1 << 20}).Draw(t, "limit")
		var starved bool
		mem := &heapSegments{}
		var r receiver
		require.NoError(t, r.init(mem, limit, 16, 64))
		mem.fails = func() bool { return starved }
		r.setPeer(uint32(entries))
		seq := rapid.Uint16().Draw(t, "seq")
		r.count, r.allowed = uint64(seq), uint64(seq)+16
		s := cSender{sgl: make([]descriptor, entries), seq: seq, comp: seq + 16}
		s.sgl[0] = r.segs[0].descriptor()

		total := rapid.IntRange(1, 1<<20).Draw(t, "total")
		maxMsg := rapid.SampledFrom([]int{1, 100, 2048, 65536}).Draw(t, "max message")
		if total/maxMsg > 3000 {
			total = 3000 * maxMsg
		}
		var toUs, toC []message
		var got []byte
		now := int64(0)
		posted := 16 // receives that data may use
		type loan struct {
			s    *segment
			b    []byte
			want []byte
		}
		var loans []loan
		send := func(n int) bool {
			if n = min(n, total-s.sent, s.room()); n == 0 {
				return false
			}
			toUs = append(toUs, s.send(n))
			return true
		}
		deliverUs := func() {
			for ; len(toUs) > 0; toUs = toUs[1:] {
				m := toUs[0]
				mem.write(t, m.addr, m.key, m.data)
				_, n := parseImm(m.imm)
				require.NoError(t, r.data(n, uint32(len(m.data)), now))
			}
			// What is lent out is not written again.
			for _, l := range loans {
				if !bytes.Equal(l.b, l.want) {
					t.Fatal("lent memory changed")
				}
			}
		}
		update := func() {
			for range 4 {
				u, ok := r.update()
				if !ok {
					return
				}
				posted += u.receives
				m := message{imm: imm(immSGL, u.limit)}
				if u.desc.length > 0 {
					m.addr, m.data = uint64(u.entry)*descriptorLen, u.desc.append(nil, order(false))
				}
				toC = append(toC, m)
			}
		}
		deliverC := func() {
			for ; len(toC) > 0; toC = toC[1:] {
				m := toC[0]
				if len(m.data) > 0 {
					e := &s.sgl[m.addr/descriptorLen]
					if e.length != 0 {
						t.Fatalf("entry %d overwritten with %d bytes left", m.addr/descriptorLen, e.length)
					}
					*e = parseDescriptor(m.data, order(false))
				}
				was := s.comp
				s.comp = uint16(m.imm)
				if s.comp-s.seq > was-s.seq+uint16(r.windowMax) {
					t.Fatalf("limit went from %d to %d at %d", was, s.comp, s.seq)
				}
				if int(s.comp-s.seq) > posted {
					t.Fatalf("%d credits, %d receives", s.comp-s.seq, posted)
				}
			}
		}
		read := func(n int, keep bool) {
			seg, b := r.lend(n)
			if seg == nil {
				return
			}
			got = append(got, b...)
			if keep && len(loans) < 3 {
				loans = append(loans, loan{seg, b, bytes.Clone(b)})
				return
			}
			r.unlend(seg)
		}
		unlend := func() {
			if len(loans) > 0 {
				r.unlend(loans[0].s)
				loans = loans[1:]
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) { send(rapid.IntRange(1, maxMsg).Draw(t, "n")) },
			"burst": func(*rapid.T) {
				for i := 0; i < 10 && send(maxMsg); i++ {
				}
			},
			"deliver C":  func(*rapid.T) { deliverC() },
			"deliver us": func(*rapid.T) { deliverUs() },
			"read":       func(t *rapid.T) { read(rapid.IntRange(1, 70000).Draw(t, "n"), false) },
			"lend":       func(t *rapid.T) { read(rapid.IntRange(1, 70000).Draw(t, "n"), true) },
			"unlend":     func(*rapid.T) { unlend() },
			"update":     func(*rapid.T) { update() },
			"time":       func(t *rapid.T) { now += rapid.Int64Range(0, 3*segSlow).Draw(t, "d") },
			"shrink":     func(*rapid.T) { r.shrink() },
			"memory":     func(t *rapid.T) { starved = rapid.Bool().Draw(t, "starved") },
			"": func(t *rapid.T) {
				if total := r.total(); total > max(limit, 2*segInitial)+2*r.maxSegment() {
					t.Fatalf("%d bytes of receive memory, limit %d", total, limit)
				}
			},
		})
		for len(got) < total {
			before := len(got)
			for send(maxMsg) {
			}
			deliverUs()
			for len(loans) > 0 {
				unlend()
			}
			for range maxSegments + 1 {
				read(1<<20, false)
			}
			update()
			deliverC()
			if len(got) == before && s.room() == 0 {
				t.Fatalf("stuck at %d of %d: sender %+v, receiver fill %d of %d, spare %v", before, total, s, r.fill, len(r.segs), r.spare != nil)
			}
		}
		if !bytes.Equal(got, pattern(0, total)) {
			t.Fatal("bytes differ")
		}
	})
}

func TestSegmentsGrow(t *testing.T) {
	mem := &heapSegments{}
	var r receiver
	require.NoError(t, r.init(mem, defaultBuffer, 64, 256))
	r.setPeer(2)
	published := []descriptor{r.segs[0].descriptor()}
	now, sizes := int64(0), []uint32{published[0].length}
	fill := func(dt int64) {
		for range 12 {
			d := published[0]
			published = published[1:]
			require.NoError(t, r.data(d.length/2, d.length/2, now))
			now += dt
			require.NoError(t, r.data(d.length-d.length/2, d.length-d.length/2, now))
			for {
				u, ok := r.update()
				if !ok {
					break
				}
				if u.desc.length > 0 {
					published, sizes = append(published, u.desc), append(sizes, u.desc.length)
				}
			}
			for {
				s, _ := r.lend(1 << 20)
				if s == nil {
					break
				}
				r.unlend(s)
			}
			if u, ok := r.update(); ok && u.desc.length > 0 {
				published, sizes = append(published, u.desc), append(sizes, u.desc.length)
			}
		}
	}
	fill(int64(1000))
	last := func() int { return int(sizes[len(sizes)-1]) }
	require.Equal(t, segCommon, last(), "%v", sizes)
	for range 4 {
		fill(int64(1000))
	}
	require.Equal(t, defaultBuffer/maxSegments, last(), "a stream that goes on: %v", sizes)
	fill(segRush)
	require.Equal(t, segCommon, last(), "not so fast: %v", sizes)
	for range 10 {
		fill(segRush)
	}
	require.Equal(t, segCommon, last())
	fill(2 * segSlow)
	require.Equal(t, segInitial, last(), "%v", sizes)
}

// TestTwoOutstanding: with segments to spare no more than two are published ahead,
// since a third would overwrite the first one's entry.
func TestTwoOutstanding(t *testing.T) {
	mem := &heapSegments{}
	var r receiver
	require.NoError(t, r.init(mem, 1<<20, 64, 256))
	r.setPeer(2)
	published := 1
	fill := func() {
		n := uint32(len(r.segs[r.fill].mem))
		require.NoError(t, r.data(n, n, 0))
	}
	update := func() {
		for {
			u, ok := r.update()
			if !ok {
				return
			}
			if u.desc.length > 0 {
				published++
			}
			require.LessOrEqual(t, len(r.segs)-r.fill, maxOutstanding)
		}
	}
	fill()
	update()
	require.Equal(t, 2, published)
	fill() // two are full and unread: a third one
	update()
	require.Equal(t, 3, published)
	for range 2 { // read both: the first goes out again, the second is to spare
		s, _ := r.lend(1 << 20)
		r.unlend(s)
		update()
	}
	require.Equal(t, 4, published)
	require.NotNil(t, r.spare)
	update()
	require.Equal(t, 4, published)

	// An idle connection gives it back; what is published stays.
	total := r.total()
	free := r.shrink()
	require.NotEmpty(t, free)
	require.Nil(t, r.spare)
	require.Less(t, r.total(), total)
	require.Equal(t, maxOutstanding, len(r.segs)-r.fill)
	require.Equal(t, segInitial, r.size)
}
