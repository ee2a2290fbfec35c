package verbs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRNRTimer(t *testing.T) {
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	for code, want := range map[uint8]time.Duration{
		0: us(655360), 1: us(10), 4: us(40), 5: us(60), 12: us(640), 14: us(1280), 24: us(40960), 31: us(491520), 32: us(655360),
	} {
		require.Equal(t, want, RNRTimer(code), "code %d", code)
	}
	for c := uint8(2); c < 32; c++ {
		require.Greater(t, RNRTimer(c), RNRTimer(c-1))
	}
}
