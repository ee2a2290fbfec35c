package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/trace/tracetest"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// memFile is a file in memory that fails or hangs when told to.
type memFile struct {
	mu     sync.Mutex
	data   []byte
	writes int
	err    error
	stuck  chan struct{}
	closed bool
}

func (m *memFile) name() string { return "memory" }

func (m *memFile) write(b []byte) error {
	m.mu.Lock()
	stuck := m.stuck
	m.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.writes++
	m.data = append(m.data, b...)
	return nil
}

func (m *memFile) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
}

func (m *memFile) contents() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.data)
}

func newMem(t *testing.T) (*Recorder, *memFile) {
	m := &memFile{}
	r, err := newRecorder(m, "softroce0")
	require.NoError(t, err)
	return r, m
}

// logged catches what is logged.
func logged(t *testing.T) *bytes.Buffer {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return &b
}

var (
	v4a, v4b = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	v6a, v6b = netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("2001:db8::2")
)

// packet is a packet as netio delivers it: a SEND to queue pair 0x123456.
func packet(src, dst netip.Addr, psn uint32, payload int) *netio.Packet {
	d := make([]byte, wire.BTHLen+payload)
	d[0], d[2], d[3] = byte(wire.RCSendOnly), 0xFF, 0xFF
	binary.BigEndian.PutUint32(d[4:], 0x123456)
	binary.BigEndian.PutUint32(d[8:], psn)
	for i := range d[wire.BTHLen:] {
		d[wire.BTHLen+i] = byte(i) ^ byte(psn)
	}
	return &netio.Packet{
		Local: dst, Remote: netip.AddrPortFrom(src, 51234), TrafficClass: 0x69, HopLimit: 63, ID: uint16(psn), Data: d,
	}
}

func psn(p tracetest.Packet) uint32 { return binary.BigEndian.Uint32(p.Datagram[8:]) & wire.PSNMask }

func TestReceived(t *testing.T) {
	r, m := newMem(t)
	before := time.Now()
	sizes := []int{0, 4, 256, 1000, 4096}
	for i, n := range sizes {
		r.Received(packet(v4a, v4b, uint32(i), n), "")
		r.Received(packet(v6a, v6b, uint32(i), n), "a note")
	}
	r.Flush()
	ps := tracetest.Parse(t, m.contents(), false)
	require.Len(t, ps, 2*len(sizes))
	last := before
	for i, p := range ps {
		src, dst, id, note := v4a, v4b, uint16(i/2), ""
		if i%2 == 1 {
			src, dst, id, note = v6a.WithZone(""), v6b, 0, "a note"
		}
		require.Equal(t, netip.AddrPortFrom(src, 51234), p.Src)
		require.Equal(t, netip.AddrPortFrom(dst, netio.Port), p.Dst)
		require.Equal(t, id, p.ID)
		require.EqualValues(t, 0x69, p.Tclass)
		require.EqualValues(t, 63, p.Hops)
		require.Equal(t, note, p.Comment)
		require.False(t, p.Outbound)
		require.True(t, p.Good())
		want := packet(src, dst, uint32(i/2), sizes[i/2]).Data
		require.Equal(t, want, p.Datagram[:len(want)])
		require.Len(t, p.Datagram, len(want)+wire.ICRCLen)
		require.False(t, p.At.Before(last), "in order, to the nanosecond")
		last = p.At
	}
	require.WithinDuration(t, before, last, 10*time.Second)
}

// TestSent has a packet in pieces. Its sender's clock decides where it stands in the file.
func TestSent(t *testing.T) {
	r, m := newMem(t)
	path := &netio.Path{Local: v4a, Remote: v4b, TrafficClass: 8}
	at := time.Now()
	r.Received(packet(v4b, v4a, 7, 0), "")
	p := packet(v4a, v4b, 6, 12)
	crc := wire.ICRCStart(v4a, v4b, 4242, 8+len(p.Data)+wire.ICRCLen, 3)
	var tail [wire.ICRCLen]byte
	wire.PutICRC(tail[:], wire.ICRCBytes(wire.ICRCHeader(crc, p.Data[:12]), p.Data[12:]))
	r.Sent(at, path, 4242, 3, p.Data[:12], [][]byte{p.Data[12:13], p.Data[13:24]}, tail[:])
	r.Flush()
	ps := tracetest.Parse(t, m.contents(), false)
	require.Len(t, ps, 2)
	require.EqualValues(t, 6, psn(ps[0]), "the earlier one first")
	require.True(t, ps[0].Outbound)
	require.True(t, ps[0].Good())
	require.True(t, at.Equal(ps[0].At))
	require.EqualValues(t, 64, ps[0].Hops)
	require.EqualValues(t, 3, ps[0].ID)
	require.False(t, ps[1].Outbound)
}

func TestRefused(t *testing.T) {
	r, m := newMem(t)
	for _, n := range []int{0, 1, 7, 17, 1480, 65507} {
		d := bytes.Repeat([]byte{0xA5}, n)
		r.Refused(&netio.Packet{Local: v4a, Remote: netip.AddrPortFrom(v4b, 9), HopLimit: 64}, d, "no good")
		r.Flush()
		ps := tracetest.Parse(t, m.contents(), false)
		require.Equal(t, d, ps[len(ps)-1].Datagram)
		require.Equal(t, "dropped: no good", ps[len(ps)-1].Comment)
	}
	r.Refused(&netio.Packet{}, nil, "a packet without addresses is none")
	r.Flush()
	require.Len(t, tracetest.Parse(t, m.contents(), false), 6)
}

// TestWhenWritten: soon without more being done, in the order of times, and nothing goes on when nothing happens.
func TestWhenWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMem(t)
		count := func() int {
			synctest.Wait()
			return len(tracetest.Parse(t, m.contents(), false))
		}
		r.Received(packet(v4a, v4b, 1, 0), "")
		time.Sleep(flushEvery - time.Millisecond)
		require.Zero(t, count())
		r.Received(packet(v4a, v4b, 2, 0), "") // too young for what follows
		time.Sleep(time.Millisecond)
		require.Equal(t, 1, count())
		time.Sleep(flushEvery)
		require.Equal(t, 2, count())
		time.Sleep(time.Hour)
		require.False(t, r.armed)
		require.Equal(t, 3, m.writes, "preamble and two packets")
		r.Flush()
		require.Equal(t, 3, m.writes)

		// Much is written at once, as far as it is old enough.
		for i := range enough/4096 + 2 {
			r.Received(packet(v4a, v4b, uint32(i), 4096), "")
		}
		synctest.Wait()
		require.Equal(t, 2, count())
		time.Sleep(flushEvery)
		require.Equal(t, 2+enough/4096+2, count())
		r.Received(packet(v4a, v4b, 1, 0), "")
		r.Flush()
		require.Equal(t, 2+enough/4096+3, count())
	})
}

// TestSlowFile: the packets that do not fit are left out and counted, and who records does not wait.
func TestSlowFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newMem(t)
		m.stuck = make(chan struct{})
		start := time.Now()
		n := 0
		for ; r.drops == 0; n++ {
			r.Received(packet(v4a, v4b, uint32(n), 4096), "")
		}
		for range 99 {
			r.Received(packet(v4a, v4b, uint32(n), 4096), "")
		}
		require.Zero(t, time.Since(start))
		require.Less(t, n*4096, limit+1<<20)
		r.Flush()
		require.Equal(t, patience, time.Since(start))
		close(m.stuck)
		time.Sleep(time.Second)
		r.Received(packet(v4a, v4b, 77, 0), "")
		r.Flush()
		ps := tracetest.Parse(t, m.contents(), false)
		require.Len(t, ps, n)
		last := ps[len(ps)-1]
		require.EqualValues(t, 77, psn(last))
		require.EqualValues(t, 100, last.Drops)
		for _, p := range ps[:len(ps)-1] {
			require.Zero(t, p.Drops)
		}
	})
}

// TestFailingFile: one line of log, and no trace any more.
func TestFailingFile(t *testing.T) {
	log := logged(t)
	synctest.Test(t, func(t *testing.T) {
		r, m := newMem(t)
		r.Received(packet(v4a, v4b, 1, 100), "")
		time.Sleep(time.Second)
		m.mu.Lock()
		m.err = syscall.ENOSPC
		m.mu.Unlock()
		for range 10 {
			r.Received(packet(v4a, v4b, 2, 100), "")
			time.Sleep(time.Second)
		}
		r.Flush()
		require.True(t, m.closed)
		require.Empty(t, r.buf)
		require.Len(t, tracetest.Parse(t, m.contents(), false), 1)
	})
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "RDMANET_PCAP: tracing has stopped, traffic goes on")
	require.Contains(t, log.String(), "packets=1 ")
	require.Contains(t, log.String(), "no space left on device")

	m := &memFile{err: syscall.ENOSPC}
	_, err := newRecorder(m, "softroce0")
	require.ErrorIs(t, err, syscall.ENOSPC)
}

// TestFullDisk is the same with a real file.
func TestFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full on this system")
	}
	_, err := Open("/dev/full", "softroce0")
	require.ErrorIs(t, err, syscall.ENOSPC)

	// A limit on the size of files is met in the middle of a write.
	log := logged(t)
	name := filepath.Join(t.TempDir(), "t.pcapng")
	f, err := openFile(name)
	require.NoError(t, err)
	r, err := newRecorder(&narrow{osFile: f, room: 10000}, "softroce0")
	require.NoError(t, err)
	for i := range 100 {
		r.Received(packet(v4a, v4b, uint32(i), 1000), "")
		if i == 5 {
			r.Flush()
		}
	}
	r.Flush()
	require.Contains(t, log.String(), "tracing has stopped")
	require.Len(t, tracetest.Read(t, name, false), 6, "whole packets only")
}

// narrow is a file that takes so many bytes.
type narrow struct {
	*osFile
	room int
}

func (n *narrow) write(b []byte) error {
	if len(b) <= n.room {
		n.room -= len(b)
		return n.osFile.write(b)
	}
	// As write(2) does: what fits, then the error.
	if _, err := n.f.Write(b[:n.room]); err != nil {
		return err
	}
	n.osFile.undo()
	return errors.New("full")
}

func TestConcurrent(t *testing.T) {
	r, m := newMem(t)
	var wg sync.WaitGroup
	const each = 2000
	for g := range 4 {
		wg.Go(func() {
			path := &netio.Path{Local: v6b, Remote: v6a}
			for i := range each {
				if i%2 == 0 {
					r.Received(packet(v4a, v4b, uint32(g*each+i), i%500*4), "")
				} else {
					r.Sent(time.Now(), path, 1, 0, packet(v6a, v6b, uint32(g*each+i), 0).Data, nil, make([]byte, 4))
				}
				if i%512 == 0 {
					r.Flush()
				}
			}
		})
	}
	wg.Wait()
	r.Flush()
	seen := map[uint32]bool{}
	for _, p := range tracetest.Parse(t, m.contents(), false) {
		seen[psn(p)] = true
	}
	require.Len(t, seen, 4*each)
}

func TestAllocations(t *testing.T) {
	r, _ := newMem(t)
	r.file = discard{}
	p := packet(v4a, v4b, 1, 1024)
	for range 5000 {
		r.Received(p, "") // buffers grow
	}
	n := testing.AllocsPerRun(2000, func() { r.Received(p, "") })
	require.Less(t, n, 0.5)
	r.Flush()
}

type discard struct{}

func (discard) name() string       { return "nothing" }
func (discard) write([]byte) error { return nil }
func (discard) close()             {}

func BenchmarkReceived(b *testing.B) {
	r, err := newRecorder(discard{}, "softroce0")
	require.NoError(b, err)
	p := packet(v4a, v4b, 1, 4096)
	b.SetBytes(4096)
	b.ReportAllocs()
	for b.Loop() {
		r.Received(p, "")
	}
	r.Flush()
}

// FuzzRecord: whatever comes, the file can be read, and says the same.
func FuzzRecord(f *testing.F) {
	f.Add(packet(v4a, v4b, 1, 20).Data, uint16(1), uint8(2), false, "")
	f.Add([]byte{}, uint16(0), uint8(0), true, "note")
	f.Add(make([]byte, 65000), uint16(65535), uint8(255), true, strings.Repeat("x", 300))
	f.Fuzz(func(t *testing.T, d []byte, id uint16, tclass uint8, v6 bool, note string) {
		if len(d) > 65000 || len(note) > 1000 {
			return
		}
		m := &memFile{}
		r, err := newRecorder(m, "softroce0")
		require.NoError(t, err)
		src, dst := v4a, v4b
		if v6 {
			src, dst = v6a, v6b
		}
		p := &netio.Packet{Local: dst, Remote: netip.AddrPortFrom(src, id), TrafficClass: tclass, HopLimit: 1, ID: id, Data: d}
		if len(d) >= wire.BTHLen {
			r.Received(p, note)
		}
		r.Refused(p, d, note)
		k := rand.IntN(len(d) + 1)
		r.Sent(time.Unix(1, 2), &netio.Path{Local: src, Remote: dst, TrafficClass: tclass}, id, id, d[:k], [][]byte{d[k:]}, nil)
		r.Flush()
		for _, p := range tracetest.Parse(t, m.contents(), false) {
			require.Equal(t, d, p.Datagram[:len(d)])
			require.Equal(t, tclass, p.Tclass)
			require.Equal(t, id, p.Src.Port())
			if len(p.Datagram) > len(d) {
				require.True(t, p.Good())
			}
		}
	})
}
