package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// A datagram of this program's begins with a mark and a number, if it is long enough. Those of C's mckey hold whatever was in memory.
const (
	mark       = 0x6d636b65792d676f // "mckey-go"
	markLength = 16
)

func number64(b []byte) (n uint64, ok bool) {
	if len(b) < markLength || binary.BigEndian.Uint64(b) != mark {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[8:]), true
}

const batch = 32

// sendAll sends all messages of a connection.
func (t *test) sendAll(m *member) error {
	var ms [batch]rdmanet.Message
	memory := make([]byte, batch*t.size)
	for i := range ms {
		b := memory[i*t.size : (i+1)*t.size]
		if len(b) >= markLength {
			binary.BigEndian.PutUint64(b, mark)
		}
		ms[i] = rdmanet.Message{Buffers: [][]byte{b}, Addr: m.group, Imm: m.qpn, HasImm: true}
	}
	start := time.Now()
	for sent := 0; sent < t.messages; {
		n := min(batch, t.messages-sent)
		for i := range n {
			if b := ms[i].Buffers[0]; len(b) >= markLength {
				binary.BigEndian.PutUint64(b[8:], uint64(sent+i))
			}
		}
		n, err := m.WriteBatch(ms[:n], 0)
		sent += n
		if err != nil {
			t.explain("mckey: %d of %d sent", sent, t.messages)
			return t.fails("failed to post sends", err)
		}
	}
	m.done(t.messages, t.messages*t.size, time.Since(start))
	if t.verbose {
		t.printf("mckey: sent %s\n", rate(t.messages, t.messages*t.size, time.Since(start)))
	}
	return nil
}

// source is what came from one sender.
type source struct {
	from     net.Addr
	messages int
	numbered bool
	low      uint64 // number
	high     uint64
}

// lost is how many numbers are missing. Negative: some came more than once.
func (s *source) lost() (n int, known bool) {
	span := s.high - s.low
	if !s.numbered || span > math.MaxInt32 { // no option asks for so many
		return 0, false
	}
	return int(span) + 1 - s.messages, true
}

// receive takes as many messages as the option says.
func (t *test) receive(m *member) error {
	ms := make([]rdmanet.Message, batch)
	for i := range ms {
		ms[i].Buffers = [][]byte{make([]byte, m.MaxPayload())}
	}
	r := newReceiver()
	var err error
	for err == nil && r.messages < t.messages {
		if t.timeout > 0 {
			if err = m.SetReadDeadline(time.Now().Add(t.timeout)); err != nil {
				break
			}
		}
		var n int
		n, err = m.ReadBatch(ms[:min(batch, t.messages-r.messages)], 0)
		r.take(ms[:n], t.size)
	}
	dropped := m.Stats().Dropped
	m.received(r, dropped)
	if t.verbose {
		t.printf("%s", r.report(dropped))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.explain("mckey: %d of %d messages, then nothing for %v", r.messages, t.messages, t.timeout)
		return &failure{status: -int(syscall.ETIMEDOUT), why: fmt.Errorf("%d of %d messages: %w", r.messages, t.messages, err)}
	}
	return t.fails("failed receiving", err)
}

// receiver counts what one connection gets.
type receiver struct {
	first, last time.Time
	messages    int
	bytes       int
	tooLong     int // for the receives of a C program, which drop them
	order       []*source
	sources     map[rdmanet.Addr]*source
}

func newReceiver() *receiver { return &receiver{sources: make(map[rdmanet.Addr]*source)} }

func (r *receiver) take(ms []rdmanet.Message, size int) {
	if r.last = time.Now(); r.first.IsZero() {
		r.first = r.last
	}
	for i := range ms {
		m := &ms[i]
		if m.N > size {
			r.tooLong++
			continue
		}
		r.messages++
		r.bytes += m.N
		from := *m.Addr.(*rdmanet.Addr)
		s := r.sources[from]
		if s == nil {
			s = &source{from: m.Addr}
			r.sources[from] = s
			r.order = append(r.order, s)
		}
		s.messages++
		n, ok := number64(m.Buffers[0][:m.N])
		switch {
		case !ok:
		case !s.numbered:
			s.numbered, s.low, s.high = true, n, n
		default:
			s.low, s.high = min(s.low, n), max(s.high, n)
		}
	}
}

// report tells what came, and what did not.
func (r *receiver) report(dropped uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "mckey: received %s", rate(r.messages, r.bytes, r.last.Sub(r.first)))
	if r.tooLong > 0 {
		fmt.Fprintf(&b, ", and %d that were longer than message_size", r.tooLong)
	}
	if dropped > 0 {
		fmt.Fprintf(&b, ", %d dropped for want of room", dropped)
	}
	b.WriteByte('\n')
	slices.SortStableFunc(r.order, func(a, b *source) int { return b.messages - a.messages })
	for _, s := range r.order {
		fmt.Fprintf(&b, "mckey: from %v %d messages, ", s.from, s.messages)
		switch lost, known := s.lost(); {
		case !s.numbered:
			b.WriteString("which have no numbers that would tell of losses\n")
		case !known:
			b.WriteString("whose numbers make no sense\n")
		case lost < 0:
			fmt.Fprintf(&b, "%d more than there are numbers\n", -lost)
		default:
			fmt.Fprintf(&b, "%d lost (%.2f %%)\n", lost, 100*float64(lost)/float64(s.messages+lost))
		}
	}
	return b.String()
}

func rate(messages, bytes int, d time.Duration) string {
	s := fmt.Sprintf("%d messages of %d bytes in all, in %v", messages, bytes, d.Round(time.Microsecond))
	if sec := d.Seconds(); sec > 0 && messages > 1 {
		s += fmt.Sprintf(": %.0f a second, %.1f MB/s", float64(messages)/sec, float64(bytes)/sec/1e6)
	}
	return s
}
