package ring

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// Private data as librdmacm 44 sends it, from rsockets-five.pcap.
const (
	helloClient = "0102018000000000" + "000055e90c3b5000000003fb00000002" + "00007f8dfc62d0000000045800010000"
	helloServer = "0102018000000000" + "00007f0bb40030000000036500000002" + "00007f0bbbb770000000047a00010000"
)

func TestConnDataOfC(t *testing.T) {
	d, err := parseConnData(append(unhex(t, helloClient), make([]byte, 16)...))
	require.NoError(t, err)
	assert.Equal(t, connData{
		credits: 384,
		sgl:     descriptor{addr: 0x55e90c3b5000, key: 0x3fb, length: 2},
		buf:     descriptor{addr: 0x7f8dfc62d000, key: 0x458, length: 65536},
	}, d)
	// Ours is the same but for the flag that offers iomap slots.
	want := unhex(t, helloClient)
	want[1] = 0
	assert.Equal(t, want, d.appendTo(nil))
}

func TestConnDataRefused(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"version 2":       func(b []byte) { b[0] = 2 },
		"version 0":       func(b []byte) { b[0] = 0 },
		"no credits":      func(b []byte) { b[2], b[3] = 0, 0 },
		"1 entry":         func(b []byte) { b[23] = 1 },
		"0 entries":       func(b []byte) { b[23] = 0 },
		"2^31 entries":    func(b []byte) { b[20] = 0x80 },
		"SGL wraps":       func(b []byte) { copy(b[8:], bytes.Repeat([]byte{0xff}, 8)) },
		"empty buffer":    func(b []byte) { copy(b[36:], make([]byte, 4)) },
		"buffer wraps":    func(b []byte) { copy(b[24:], bytes.Repeat([]byte{0xff}, 8)) },
		"buffer wraps to": func(b []byte) { copy(b[24:], unhex(t, "ffffffffffff0000")); copy(b[36:], unhex(t, "00010000")) },
	} {
		b := unhex(t, helloServer)
		change(b)
		_, err := parseConnData(b)
		assert.ErrorIs(t, err, ErrProtocol, name)
	}
	for n := range connDataLen {
		_, err := parseConnData(unhex(t, helloServer)[:n])
		assert.ErrorIs(t, err, ErrProtocol, "%d bytes", n)
	}
}

func TestDescriptorOfC(t *testing.T) {
	// The first credit update of rsockets-five.pcap, and the same for a big-endian owner.
	d := descriptor{addr: 0x00007f8dfc63d000, key: 0x458, length: 65536}
	little, big := unhex(t, "00d063fc8d7f00005804000000000100"), unhex(t, "00007f8dfc63d0000000045800010000")
	assert.Equal(t, little, d.append(nil, order(false)))
	assert.Equal(t, big, d.append(nil, order(true)))
	assert.Equal(t, d, parseDescriptor(little, order(false)))
	assert.Equal(t, d, parseDescriptor(big, order(true)))
}

func TestImmediates(t *testing.T) {
	assert.Equal(t, uint32(0x00000005), imm(immData, 5))
	assert.Equal(t, uint32(0x80000180), imm(immSGL, 384))
	assert.Equal(t, uint32(0xe0000000), imm(immCtrl, ctrlDisconnect))
	assert.Equal(t, uint32(0xe0000002), imm(immCtrl, ctrlShutdown))
	assert.Equal(t, uint32(0xc0000001), imm(immIOMap, 1))
}

func FuzzConnData(f *testing.F) {
	f.Add(unhex(f, helloClient))
	f.Add(unhex(f, helloServer))
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseConnData(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		if d.credits == 0 || d.sgl.length < 2 || d.buf.length == 0 ||
			d.buf.addr+uint64(d.buf.length) < d.buf.addr || d.sgl.addr+16*uint64(d.sgl.length) < d.sgl.addr {
			t.Fatalf("accepted %+v", d)
		}
		again, err := parseConnData(d.appendTo(nil))
		if err != nil || again != d {
			t.Fatalf("%+v became %+v, %v", d, again, err)
		}
	})
}

func FuzzDescriptor(f *testing.F) {
	f.Add(unhex(f, "00d063fc8d7f00005804000000000100"), false)
	f.Add(unhex(f, "00007f8dfc63d0000000045800010000"), true)
	f.Add(make([]byte, 16), false)
	f.Fuzz(func(t *testing.T, b []byte, big bool) {
		if len(b) < descriptorLen {
			return
		}
		d := parseDescriptor(b, order(big))
		if !bytes.Equal(d.append(nil, order(big)), b[:descriptorLen]) {
			t.Fatalf("%x became %+v", b, d)
		}
		var w window
		w.init(16, descriptor{length: 1})
		if err := w.publish(d); (err == nil) != d.valid() {
			t.Fatalf("%+v: %v", d, err)
		}
	})
}

// FuzzReceiver feeds immediates to a receiver: two bytes choose type and size of each.
func FuzzReceiver(f *testing.F) {
	f.Add([]byte{0, 5, 0, 5, 4, 0, 7, 0})
	f.Add([]byte{0, 255, 1, 255, 3, 255, 0x80, 1})
	f.Add(bytes.Repeat([]byte{0, 0}, 200))
	f.Fuzz(func(t *testing.T, script []byte) {
		mem := &heapSegments{}
		var r receiver
		if err := r.init(mem, 64<<10, 16, 64); err != nil {
			t.Fatal(err)
		}
		r.setPeer(2)
		space := len(r.segs[0].mem)
		allowed := uint64(16)
		for i := 0; i+1 < len(script); i += 2 {
			op, v := script[i], uint32(script[i+1])
			n := v * uint32(1+op&0x1f) * 8
			switch {
			case op&0x80 != 0: // read
				if s, b := r.lend(int(n)); s != nil {
					space += 0 * len(b)
					r.unlend(s)
				}
			case op&0x40 != 0: // update
				if u, ok := r.update(); ok {
					space += int(u.desc.length)
					allowed = r.allowed
				}
			default:
				written := n
				if op&0x20 != 0 {
					written = v
				}
				if err := r.data(n, written, int64(i)); err != nil {
					if !errors.Is(err, ErrProtocol) {
						t.Fatal(err)
					}
					return
				}
				space -= int(n)
			}
			if space < 0 || r.count > allowed || r.avail < 0 || r.fill > len(r.segs) || len(r.segs)-r.fill > maxOutstanding {
				t.Fatalf("space %d, count %d of %d, avail %d, %d of %d segments full", space, r.count, allowed, r.avail, r.fill, len(r.segs))
			}
			if total := r.total(); total > max(64<<10, 2*segInitial)+2*r.maxSegment() {
				t.Fatalf("%d bytes of receive memory", total)
			}
		}
	})
}

// heapSegments is receive memory for tests of the receiver alone.
type heapSegments struct {
	next  uint64
	all   []*segment
	fails func() bool
}

func (h *heapSegments) getSegment(size int) (*segment, error) {
	if h.fails != nil && h.fails() {
		return nil, errors.New("no memory")
	}
	h.next += 1 << 32
	s := &segment{mem: make([]byte, size), addr: h.next, key: uint32(h.next >> 32)}
	h.all = append(h.all, s)
	return s, nil
}

// write is the peer's RDMA write.
func (h *heapSegments) write(t *rapid.T, addr uint64, key uint32, data []byte) {
	for _, s := range h.all {
		if s.key != key {
			continue
		}
		if addr < s.addr || addr+uint64(len(data)) > s.addr+uint64(len(s.mem)) {
			break
		}
		copy(s.mem[addr-s.addr:], data)
		return
	}
	t.Fatalf("remote access error: %d bytes at %#x with key %d", len(data), addr, key)
}
