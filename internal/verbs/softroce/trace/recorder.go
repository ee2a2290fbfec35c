package trace

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

const (
	// flushEvery bounds what a process that is killed takes with it. enough is written
	// at once. What comes while limit bytes wait is left out.
	flushEvery = 50 * time.Millisecond
	enough     = 1 << 20
	limit      = 8 << 20

	// settle is the age that packets reach before they are written, in the order of their times: what
	// is sent is recorded when the kernel has it, and the answer may be faster than that.
	settle = 20 * time.Millisecond

	// patience bounds the wait for a file at the end.
	patience = time.Second
)

// record is one packet that waits for being written.
type record struct {
	at     int64
	off, n int
}

// Recorder writes a trace. Its methods are safe for concurrent use, and none but Flush waits.
type Recorder struct {
	file file
	now  func() time.Time

	mu      sync.Mutex
	buf     []byte
	recs    []record
	timer   *time.Timer
	fresh   int  // bytes since flush last looked
	armed   bool // flush will run, or does
	urgent  bool // at once
	waiters []chan struct{}
	drops   uint64 // not yet told
	written uint64
	off     bool // the file failed

	// Of flush alone.
	out, spareBuf []byte
	spareRecs     []record
}

var _ netio.Tracer = (*Recorder)(nil)

// newRecorder begins a trace in an empty file.
func newRecorder(f file, device string) (*Recorder, error) {
	r := &Recorder{file: f, now: time.Now}
	if err := f.write(preamble(device)); err != nil {
		return nil, err
	}
	return r, nil
}

// Received records a packet that came in. note, if there is one, is a comment on it.
func (r *Recorder) Received(p *netio.Packet, note string) {
	h := header{p.Remote.Addr(), p.Local, p.Remote.Port(), p.TrafficClass, p.HopLimit, p.ID}
	var icrc [wire.ICRCLen]byte
	crc := wire.ICRCStart(h.src, h.dst, h.srcPort, udpLen+len(p.Data)+wire.ICRCLen, h.id)
	if n := min(len(p.Data), wire.MaxHeaderLen); n > 0 {
		crc = wire.ICRCBytes(wire.ICRCHeader(crc, p.Data[:n]), p.Data[n:])
	}
	wire.PutICRC(icrc[:], crc)
	r.record(r.now(), inbound, &h, note, p.Data, nil, icrc[:])
}

// Refused implements [netio.Tracer].
func (r *Recorder) Refused(p *netio.Packet, datagram []byte, why string) {
	h := header{p.Remote.Addr(), p.Local, p.Remote.Port(), p.TrafficClass, p.HopLimit, 0}
	r.record(r.now(), inbound, &h, "dropped: "+why, datagram, nil, nil)
}

// Sent implements [netio.Tracer].
func (r *Recorder) Sent(at time.Time, path *netio.Path, port, id uint16, hdr []byte, frags [][]byte, tail []byte) {
	h := header{path.Local, path.Remote, port, path.TrafficClass, path.HopLimit, id}
	if h.hops == 0 {
		h.hops = defaultHops
	}
	r.record(at, outbound, &h, "", hdr, frags, tail)
}

// record appends a packet to those that wait. Its payload is head, frags and tail.
func (r *Recorder) record(at time.Time, dir direction, h *header, note string, head []byte, frags [][]byte, tail []byte) {
	if !h.src.IsValid() || h.src.Is4() != h.dst.Is4() {
		return
	}
	n := len(head) + len(tail)
	for _, f := range frags {
		n += len(f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.off:
		return
	case len(r.buf) > limit:
		r.drops++
		return
	}
	t := at.UnixNano()
	start := len(r.buf)
	b := begin(r.buf, blockPacket)
	b = le.AppendUint32(b, 0) // interface
	b = le.AppendUint32(b, uint32(uint64(t)>>32))
	b = le.AppendUint32(b, uint32(t))
	size := h.len() + n
	b = le.AppendUint32(b, uint32(size))
	b = le.AppendUint32(b, uint32(size))
	b = slices.Grow(b, size+64)
	b = b[:len(b)+h.len()]
	h.put(b[start+packetHead:], n)
	b = append(b, head...)
	for _, f := range frags {
		b = append(b, f...)
	}
	b = append(b, tail...)
	putChecksum(b[start+packetHead:], h.len())
	b = pad4(b, size)
	if note != "" {
		b = option(b, optComment, []byte(note))
	}
	b = option(b, optPacketFlags, le.AppendUint32(make([]byte, 0, 4), uint32(dir)))
	if r.drops > 0 {
		b = option(b, optPacketDrops, le.AppendUint64(make([]byte, 0, 8), r.drops))
		r.drops = 0
	}
	r.buf = end(endOptions(b), start)
	r.recs = append(r.recs, record{t, start, len(r.buf) - start})
	r.fresh += len(r.buf) - start
	r.arm(r.fresh >= enough)
}

// arm makes flush run, soon or at once.
func (r *Recorder) arm(urgent bool) {
	d := flushEvery
	if urgent {
		d = 0
	}
	switch {
	case r.timer == nil:
		r.timer = time.AfterFunc(d, r.flush)
	case !r.armed:
		r.timer.Reset(d)
	case urgent && !r.urgent && r.timer.Stop(): // else it has begun
		r.timer.Reset(0)
	}
	r.armed, r.urgent = true, r.urgent || urgent
}

// flush writes what is old enough, or everything if somebody waits for that.
func (r *Recorder) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		waiters := r.waiters
		r.waiters = nil
		buf, recs := r.buf, r.recs
		r.buf, r.recs, r.fresh = r.spareBuf[:0], r.spareRecs[:0], 0
		r.mu.Unlock()

		until := r.now().Add(-settle).UnixNano()
		if len(waiters) > 0 || len(buf) > limit/2 {
			until = 1<<63 - 1
		}
		left, err := r.write(buf, recs, until)

		r.mu.Lock()
		if err != nil {
			r.waiters = append(r.waiters, waiters...)
			r.stop(err)
			return
		}
		for _, w := range waiters {
			close(w)
		}
		r.written += uint64(len(recs) - len(left))
		for _, c := range left {
			off := len(r.buf)
			r.buf = append(r.buf, buf[c.off:c.off+c.n]...)
			r.recs = append(r.recs, record{c.at, off, c.n})
		}
		r.spareBuf, r.spareRecs = buf, recs
		if len(r.waiters) == 0 && r.fresh < enough {
			break
		}
	}
	r.armed, r.urgent = false, false
	if len(r.recs) > 0 {
		r.arm(false)
	}
}

// write writes the packets until a time, oldest first, and returns the others.
func (r *Recorder) write(buf []byte, recs []record, until int64) (left []record, err error) {
	slices.SortStableFunc(recs, func(a, b record) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	n := len(recs)
	for n > 0 && recs[n-1].at > until {
		n--
	}
	r.out = r.out[:0]
	for _, c := range recs[:n] {
		r.out = append(r.out, buf[c.off:c.off+c.n]...)
	}
	if len(r.out) > 0 {
		err = r.file.write(r.out)
	}
	return recs[n:], err
}

// stop ends a trace whose file failed.
func (r *Recorder) stop(err error) {
	r.off = true
	waiters := r.waiters
	r.buf, r.recs, r.out, r.spareBuf, r.spareRecs, r.waiters = nil, nil, nil, nil, nil, nil
	r.mu.Unlock()
	r.file.close()
	slog.Warn(Env+": tracing has stopped, traffic goes on", "file", r.file.name(), "packets", r.written, "err", err)
	for _, w := range waiters {
		close(w)
	}
	r.mu.Lock()
}

// Flush writes what was recorded before, unless the file takes too long for that.
func (r *Recorder) Flush() {
	done := make(chan struct{})
	r.mu.Lock()
	if r.off || !r.armed {
		r.mu.Unlock()
		return
	}
	r.waiters = append(r.waiters, done)
	r.arm(true)
	r.mu.Unlock()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}
