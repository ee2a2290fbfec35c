package rc

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Sizes of blocks: powers of two from MinBlock to MaxBlock.
const (
	MinBlock = 4 << 10
	MaxBlock = 1 << 20

	arenaSize = 2 << 20
	leaves    = arenaSize / MinBlock
	orders    = 10 // of block sizes: MinBlock << order, the last being a whole arena
)

// allocator hands out blocks of registered arenas by the buddy method. Arenas
// come when needed and go when empty, all but one.
type allocator struct {
	pd verbs.PD

	mu     sync.Mutex
	arenas []*arena // older ones are filled first, so that younger ones empty
	closed bool
}

// arena is a registered arena and its free blocks.
type arena struct {
	arena verbs.Arena
	mr    verbs.MR // local access only
	mem   []byte

	avail uint32                      // orders that have free blocks, a bit each
	free  [orders][leaves / 64]uint64 // a bit for each free block of the order
	dirty [leaves / 64]uint64         // leaves that somebody had
}

// Block is a range of registered memory, of a power of two bytes. The zero
// Block is none.
type Block struct {
	a     *arena
	leaf  uint16
	order uint8
}

// Valid tells whether b is a block at all.
func (b Block) Valid() bool { return b.a != nil }

// Size returns the block's bytes.
func (b Block) Size() int { return MinBlock << b.order }

// Bytes returns the block's memory.
func (b Block) Bytes() []byte {
	off := int(b.leaf) * MinBlock
	return b.a.mem[off : off+b.Size() : off+b.Size()]
}

// Addr is the block's address for local use, with LKey.
func (b Block) Addr() uint64 { return b.a.mr.Addr() + uint64(b.leaf)*MinBlock }

// LKey is the key for local reads of the block, the payload of sends and writes.
func (b Block) LKey() uint32 { return b.a.mr.LKey() }

// BlockSize returns the size of the block that get(n) gives, or 0 if n is too much.
func BlockSize(n int) int {
	if n > MaxBlock {
		return 0
	}
	return MinBlock << orderOf(n)
}

func orderOf(n int) int {
	if n <= MinBlock {
		return 0
	}
	return bits.Len(uint((n - 1) / MinBlock))
}

// get returns a block of at least n bytes. With zero set nothing of what another
// user had in it is left.
func (al *allocator) get(n int, zero bool) (Block, error) {
	if n <= 0 || n > MaxBlock {
		return Block{}, fmt.Errorf("rc: block of %d bytes: %w", n, syscall.EINVAL)
	}
	order := orderOf(n)
	for {
		b, dirty, err := al.take(order, zero)
		if err != nil {
			return Block{}, err
		}
		if b.Valid() {
			if dirty {
				clear(b.Bytes())
			}
			return b, nil
		}
		if err := al.grow(); err != nil {
			return Block{}, err
		}
	}
}

// take looks for a free block in the arenas there are.
func (al *allocator) take(order int, zero bool) (b Block, dirty bool, err error) {
	al.mu.Lock()
	defer al.mu.Unlock()
	if al.closed {
		return Block{}, false, fmt.Errorf("rc: block of a closed device: %w", syscall.ENODEV)
	}
	for _, a := range al.arenas {
		if a.avail>>order == 0 {
			continue
		}
		leaf := a.take(order)
		b = Block{a: a, leaf: uint16(leaf), order: uint8(order)}
		return b, a.soil(leaf, 1<<order) && zero, nil
	}
	return Block{}, false, nil
}

// grow adds an arena.
func (al *allocator) grow() error {
	ar, err := al.pd.NewArena(arenaSize)
	if err != nil {
		return fmt.Errorf("rc: arena: %w", err)
	}
	a := &arena{arena: ar, mem: ar.Bytes()}
	if a.mr, err = al.pd.RegMR(a.mem, 0); err != nil {
		_ = ar.Close() // nothing uses it
		return fmt.Errorf("rc: registering an arena: %w", err)
	}
	a.put(orders-1, 0)
	al.mu.Lock()
	if al.closed {
		al.mu.Unlock()
		return a.close()
	}
	al.arenas = append(al.arenas, a)
	al.mu.Unlock()
	return nil
}

// put gives a block back.
func (al *allocator) put(b Block) {
	al.mu.Lock()
	b.a.put(int(b.order), int(b.leaf)>>b.order)
	var idle *arena
	if b.a.empty() {
		idle = al.spare()
	}
	al.mu.Unlock()
	if idle != nil {
		_ = idle.close() // an error leaves a mapping behind, which nobody can mend
	}
}

// spare takes the youngest empty arena out, if there is another.
func (al *allocator) spare() *arena {
	youngest, n := -1, 0
	for i, a := range al.arenas {
		if a.empty() {
			youngest, n = i, n+1
		}
	}
	if n < 2 {
		return nil
	}
	a := al.arenas[youngest]
	al.arenas = slices.Delete(al.arenas, youngest, youngest+1)
	return a
}

// close releases all arenas. No block may be in use.
func (al *allocator) close() error {
	al.mu.Lock()
	arenas := al.arenas
	al.arenas, al.closed = nil, true
	al.mu.Unlock()
	var first error
	for _, a := range arenas {
		if !a.empty() && first == nil {
			first = fmt.Errorf("rc: arena with blocks in use: %w", verbs.ErrBusy)
		}
		if err := a.close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// inUse returns the number of arenas and the bytes of blocks handed out.
func (al *allocator) inUse() (arenas, bytes int) {
	al.mu.Lock()
	defer al.mu.Unlock()
	for _, a := range al.arenas {
		bytes += arenaSize
		for o := range a.free {
			for _, w := range a.free[o] {
				bytes -= bits.OnesCount64(w) * MinBlock << o
			}
		}
	}
	return len(al.arenas), bytes
}

func (a *arena) close() error {
	err := a.mr.Close()
	if e := a.arena.Close(); err == nil {
		err = e
	}
	return err
}

func (a *arena) empty() bool { return a.avail == 1<<(orders-1) }

// take takes a block of the order out of the smallest free block that holds one
// and returns its first leaf. There is one.
func (a *arena) take(order int) int {
	o := order + bits.TrailingZeros32(a.avail>>order)
	pos := 0
	for i, w := range a.free[o] {
		if w != 0 {
			pos = i*64 + bits.TrailingZeros64(w)
			break
		}
	}
	a.clear(o, pos)
	for o > order {
		o--
		pos *= 2
		a.set(o, pos+1)
	}
	return pos << order
}

// put frees block pos of the order and joins it with its buddy, as often as that is free.
func (a *arena) put(order, pos int) {
	for order < orders-1 && a.free[order][(pos^1)/64]>>((pos^1)%64)&1 != 0 {
		a.clear(order, pos^1)
		order++
		pos /= 2
	}
	a.set(order, pos)
}

func (a *arena) set(order, pos int) {
	a.free[order][pos/64] |= 1 << (pos % 64)
	a.avail |= 1 << order
}

func (a *arena) clear(order, pos int) {
	a.free[order][pos/64] &^= 1 << (pos % 64)
	for _, w := range a.free[order] {
		if w != 0 {
			return
		}
	}
	a.avail &^= 1 << order
}

// soil marks n leaves as used and tells whether any was before.
func (a *arena) soil(leaf, n int) (was bool) {
	for i := leaf; i < leaf+n; i++ {
		was = was || a.dirty[i/64]>>(i%64)&1 != 0
		a.dirty[i/64] |= 1 << (i % 64)
	}
	return was
}
