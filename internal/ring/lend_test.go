package ring

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLentMemoryIsNotWritten: what is lent is not the peer's to write until it is given back, however much of it has been read; the rest of
// the memory goes round meanwhile, and then this too.
func TestLentMemoryIsNotWritten(t *testing.T) {
	mem := &heapSegments{}
	var r receiver
	require.NoError(t, r.init(mem, 64<<10, 64, 256))
	r.setPeer(2)
	published := []descriptor{r.segs[0].descriptor()}
	update := func() {
		for {
			u, ok := r.update()
			if !ok {
				return
			}
			if u.desc.length > 0 {
				published = append(published, u.desc)
			}
		}
	}
	fill := func(b byte) {
		d := published[0]
		published = published[1:]
		i := slices.IndexFunc(r.segs, func(s *segment) bool { return s.descriptor() == d })
		require.GreaterOrEqual(t, i, 0)
		copy(r.segs[i].mem, bytes.Repeat([]byte{b}, int(d.length)))
		require.NoError(t, r.data(d.length, d.length, 0))
		update()
	}
	update()
	fill(1)
	lent, b := r.lend(1 << 20)
	require.NotNil(t, lent)
	want := bytes.Clone(b)
	for range 50 {
		require.NotEmpty(t, published, "there is other memory")
		fill(2)
		s, _ := r.lend(1 << 20)
		require.NotNil(t, s)
		require.NotSame(t, lent, s)
		r.unlend(s)
		update()
		require.Equal(t, want, b)
		require.True(t, slices.Contains(r.segs, lent), "it is neither given back nor used again")
	}
	require.False(t, r.unlend(lent))
	require.False(t, slices.Contains(r.segs, lent))
}
