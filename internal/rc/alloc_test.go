package rc

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/go-rdma/rdma/internal/verbs"
)

// heapPD is a protection domain as far as the allocator needs one, and watches
// that regions and arenas are closed in order.
type heapPD struct {
	verbs.PD
	mu           sync.Mutex
	arenas, mrs  int
	next         uint64
	fail, failMR error
}

type heapArena struct {
	pd  *heapPD
	mem []byte
}

type heapMR struct {
	pd   *heapPD
	mem  []byte
	addr uint64
}

func (p *heapPD) NewArena(size int) (verbs.Arena, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	p.arenas++
	return &heapArena{pd: p, mem: make([]byte, size)}, nil
}

func (p *heapPD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failMR != nil {
		return nil, p.failMR
	}
	p.mrs++
	p.next += 1 << 30
	return &heapMR{pd: p, mem: mem, addr: p.next}, nil
}

func (a *heapArena) Bytes() []byte { return a.mem }
func (a *heapArena) Close() error  { a.pd.mu.Lock(); defer a.pd.mu.Unlock(); a.pd.arenas--; return nil }

func (m *heapMR) Bytes() []byte { return m.mem }
func (m *heapMR) Addr() uint64  { return m.addr }
func (m *heapMR) LKey() uint32  { return uint32(m.addr >> 30) }
func (m *heapMR) RKey() uint32  { return 0 }
func (m *heapMR) Close() error  { m.pd.mu.Lock(); defer m.pd.mu.Unlock(); m.pd.mrs--; return nil }

// stamp marks memory at the beginning, the end and in between.
func stamp(b []byte, mark byte) {
	for i := 0; i < len(b); i += 1024 {
		b[i], b[i+1023] = mark, mark
	}
}

func stamped(b []byte, mark byte) bool {
	for i := 0; i < len(b); i += 1024 {
		if b[i] != mark || b[i+1023] != mark {
			return false
		}
	}
	return true
}

func TestBlocksDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pd := &heapPD{}
		al := &allocator{pd: pd}
		type held struct {
			b    Block
			mark byte
		}
		var blocks []held
		var mark byte
		inUse := 0
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(1, MaxBlock), rapid.SampledFrom([]int{1, 4096, 4097, 16384, 65536, MaxBlock})).Draw(t, "n")
				zero := rapid.Bool().Draw(t, "zero")
				b, err := al.get(n, zero)
				require.NoError(t, err)
				if b.Size() < n || b.Size() >= 2*max(n, MinBlock) || b.Size() != BlockSize(n) || len(b.Bytes()) != b.Size() {
					t.Fatalf("block of %d for %d", b.Size(), n)
				}
				if zero && bytes.Count(b.Bytes(), []byte{0}) != b.Size() {
					t.Fatal("block not zeroed")
				}
				if b.Addr()-b.a.mr.Addr() != uint64(cap(b.a.mem)-cap(b.a.mem[int(b.leaf)*MinBlock:])) {
					t.Fatal("address")
				}
				mark++
				stamp(b.Bytes(), mark)
				blocks = append(blocks, held{b, mark})
				inUse += b.Size()
			},
			"put": func(t *rapid.T) {
				if len(blocks) == 0 {
					return
				}
				i := rapid.IntRange(0, len(blocks)-1).Draw(t, "i")
				h := blocks[i]
				if !stamped(h.b.Bytes(), h.mark) {
					t.Fatal("block was overwritten")
				}
				blocks = append(blocks[:i], blocks[i+1:]...)
				inUse -= h.b.Size()
				al.put(h.b)
			},
			"": func(t *rapid.T) {
				if _, n := al.inUse(); n != inUse {
					t.Fatalf("%d bytes in use, want %d", n, inUse)
				}
			},
		})
		for _, h := range blocks {
			al.put(h.b)
		}
		if n, bytes := al.inUse(); n > 1 || bytes != 0 || pd.arenas != n || pd.mrs != n {
			t.Fatalf("%d arenas with %d bytes kept, %d mapped, %d regions", n, bytes, pd.arenas, pd.mrs)
		}
		require.NoError(t, al.close())
		if pd.arenas != 0 || pd.mrs != 0 {
			t.Fatalf("%d arenas and %d regions left", pd.arenas, pd.mrs)
		}
	})
}

func TestBlocksConcurrently(t *testing.T) {
	al := &allocator{pd: &heapPD{}}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 300 {
				b, err := al.get(MinBlock<<(i%8), i%2 == 0)
				if !assert.NoError(t, err) {
					return
				}
				m := b.Bytes()
				m[0], m[len(m)-1] = byte(g), byte(g)
				if m[0] != byte(g) || m[len(m)-1] != byte(g) {
					t.Error("block shared")
				}
				al.put(b)
			}
		})
	}
	wg.Wait()
	_, n := al.inUse()
	assert.Zero(t, n)
	require.NoError(t, al.close())
}

func TestBlockErrors(t *testing.T) {
	pd := &heapPD{}
	al := &allocator{pd: pd}
	for _, n := range []int{-1, 0, MaxBlock + 1} {
		_, err := al.get(n, false)
		assert.ErrorIs(t, err, syscall.EINVAL, "%d", n)
	}
	assert.Zero(t, BlockSize(MaxBlock+1))
	pd.fail = syscall.ENOMEM
	_, err := al.get(1, false)
	require.ErrorIs(t, err, syscall.ENOMEM)
	pd.fail, pd.failMR = nil, errors.New("memlock")
	_, err = al.get(1, false)
	require.ErrorIs(t, err, pd.failMR)
	assert.Zero(t, pd.arenas, "an arena that cannot be registered is unmapped")
	pd.failMR = nil
	b, err := al.get(1, false)
	require.NoError(t, err)
	require.ErrorIs(t, al.close(), verbs.ErrBusy)
	_ = b
	_, err = al.get(1, false)
	require.ErrorIs(t, err, syscall.ENODEV)
}
