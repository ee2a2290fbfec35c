package verbs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCaps(t *testing.T) {
	def, most := QPCap{1, 2, 3, 4, 5, 0}, QPCap{10, 20, 30, 40, 50, 0}
	got, err := (&QPInitAttr{}).Caps("x", &def, &most)
	require.NoError(t, err)
	require.Equal(t, def, got)
	got, err = (&QPInitAttr{MaxSendWR: 10, MaxRecvWR: 20, MaxSendSGE: 30, MaxRecvSGE: 40, MaxInline: 50}).Caps("x", &def, &most)
	require.NoError(t, err)
	require.Equal(t, most, got)
	for want, attr := range map[string]QPInitAttr{
		"11 send requests, the limit is 10": {MaxSendWR: 11}, "-1 receive requests": {MaxRecvWR: -1}, "31 send SGEs": {MaxSendSGE: 31},
		"41 receive SGEs": {MaxRecvSGE: 41}, "51 inline bytes": {MaxInline: 51},
	} {
		_, err := attr.Caps("x", &def, &most)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "x: queue pair: "+want)
	}
	wr, sge, err := (&SRQAttr{}).Limits("x", 1, 2, 3, 4)
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 2}, [2]int{wr, sge})
	for _, attr := range []SRQAttr{{MaxWR: -1}, {MaxWR: 4}, {MaxSGE: -1}, {MaxSGE: 5}} {
		_, _, err := attr.Limits("x", 1, 2, 3, 4)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// span is a region for tests.
type span struct {
	addr, n uint64
	access  Access
}

func (s *span) Range(addr, n uint64, access Access) (off uint64, ok bool) {
	off = addr - s.addr
	return off, off <= s.n && n <= s.n-off && s.access&access == access
}

func TestGather(t *testing.T) {
	regions := map[uint32]*span{1: {1000, 100, LocalWrite}, 2: {^uint64(0) - 99, 100, 0}}
	find := func(key uint32) *span { return regions[key] }
	type part struct {
		r   *span
		off uint64
		n   uint32
	}
	for name, c := range map[string]struct {
		sgl    []SGE
		access Access
		want   []part
		err    error
	}{
		"none":    {},
		"whole":   {[]SGE{{1000, 100, 1}}, LocalWrite, []part{{regions[1], 0, 100}}, nil},
		"two":     {[]SGE{{1099, 1, 1}, {^uint64(0), 1, 2}}, 0, []part{{regions[1], 99, 1}, {regions[2], 99, 1}}, nil},
		"empty":   {[]SGE{{5, 0, 7}, {1000, 1, 1}}, 0, []part{{regions[1], 0, 1}}, nil},
		"key":     {[]SGE{{1000, 1, 3}}, 0, nil, ErrProtection},
		"right":   {[]SGE{{^uint64(0), 1, 2}}, LocalWrite, nil, ErrProtection},
		"before":  {[]SGE{{999, 1, 1}}, 0, nil, ErrProtection},
		"beyond":  {[]SGE{{1100, 1, 1}}, 0, nil, ErrProtection},
		"around":  {[]SGE{{^uint64(0), 2, 2}}, 0, nil, ErrProtection},
		"partway": {[]SGE{{1000, 1, 1}, {1000, 1, 3}}, 0, []part{{regions[1], 0, 1}}, ErrProtection},
	} {
		var got []part
		err := Gather(c.sgl, c.access, find, func(r *span, off uint64, n uint32) { got = append(got, part{r, off, n}) })
		require.Equal(t, c.err, err, name)
		require.Equal(t, c.want, got, name)
	}
	sgl := []SGE{{1000, 1, 1}, {1001, 1, 1}}
	dst := make([]part, 0, 4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		d := dst
		_ = Gather(sgl, 0, find, func(r *span, off uint64, n uint32) { d = append(d, part{r, off, n}) })
	}))
}
