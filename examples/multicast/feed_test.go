package main

import (
	"crypto/sha256"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func newSubscriber() *subscriber {
	return &subscriber{ahead: make(map[uint64]quote), sum: sha256.New()}
}

func (s *subscriber) takeAll(numbers ...uint64) {
	for _, n := range numbers {
		s.take(&datagram{kind: quoteKind, number: n})
	}
}

func TestGaps(t *testing.T) {
	s := newSubscriber()
	s.takeAll(2, 1, 3, 3, 7, 5) // 1 is a gap, and so are 4 to 6
	require.EqualValues(t, 4, s.next)
	require.EqualValues(t, 7, s.highest)
	require.Equal(t, []int{3, 2, 2, 1}, []int{s.quotes, s.gaps, s.repaired, s.twice})
	require.False(t, s.retryAt.IsZero())
	s.takeAll(6, 4)
	require.Equal(t, []int{7, 2, 4, 1}, []int{s.quotes, s.gaps, s.repaired, s.twice})
	require.True(t, s.retryAt.IsZero(), "nothing is missing")
	s.take(&datagram{kind: endKind, number: 9})
	require.Equal(t, 3, s.gaps)
	s.take(&datagram{kind: oldestKind, number: 9})
	require.Equal(t, 1, s.lost, "8 is gone")
	s.takeAll(9)
	require.EqualValues(t, 10, s.next)
	require.True(t, s.ended)
}

// One that comes late begins where the feed is, if the beginning is gone.
func TestLate(t *testing.T) {
	s := newSubscriber()
	s.takeAll(history+5, history+6)
	require.EqualValues(t, history+7, s.next)
	require.Zero(t, s.gaps)
	s = newSubscriber()
	s.takeAll(50)
	require.EqualValues(t, 1, s.next)
	require.Equal(t, 1, s.gaps)
	s.takeAll(1 << 60) // no number that can be
	require.EqualValues(t, 50, s.highest)
}

// Whatever comes is understood or refused, and a subscriber survives it.
func FuzzFeed(f *testing.F) {
	for _, d := range []datagram{
		{kind: quoteKind, number: 3, quote: quote{symbol: [8]byte{'X'}, price: 1, size: 2}}, {kind: idleKind, number: 4}, {kind: endKind, number: 1 << 63},
		{kind: askKind, number: 1, count: 1 << 62}, {kind: oldestKind, number: 77},
	} {
		f.Add(d.append(nil), d.append(nil))
	}
	f.Add([]byte("MDF1"), []byte{})
	late, last := datagram{kind: quoteKind, number: math.MaxUint64 - 0xf000}, datagram{kind: quoteKind, number: math.MaxUint64}
	f.Add(late.append(nil), last.append(nil)) // there is no number behind the last
	f.Fuzz(func(t *testing.T, x, y []byte) {
		s := newSubscriber()
		for _, b := range [][]byte{x, y, x} {
			d, err := parse(b)
			if err != nil {
				continue
			}
			require.Equal(t, b, d.append(nil))
			s.take(&d)
			require.LessOrEqual(t, s.next, s.highest+1)
		}
	})
}
