//go:build linux

package shm

// fifo is a queue that keeps its storage.
type fifo[T any] struct {
	ring    []T // a power of two
	head, n int
}

func (f *fifo[T]) at(i int) *T { return &f.ring[(f.head+i)&(len(f.ring)-1)] }

func (f *fifo[T]) grow() {
	if f.n < len(f.ring) {
		return
	}
	ring := make([]T, max(4, 2*f.n))
	for i := range f.n {
		ring[i] = *f.at(i)
	}
	f.ring, f.head = ring, 0
}

func (f *fifo[T]) push(v T) {
	f.grow()
	f.n++
	*f.at(f.n - 1) = v
}

// pushFront has v come next.
func (f *fifo[T]) pushFront(v T) {
	f.grow()
	f.head = (f.head - 1) & (len(f.ring) - 1)
	f.n++
	*f.at(0) = v
}

// pop takes what comes next. There is something.
func (f *fifo[T]) pop() (v T) {
	var none T
	v, *f.at(0) = *f.at(0), none
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.n--
	return v
}
