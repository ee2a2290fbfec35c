package rping

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBuffer(t *testing.T) {
	var p [messageSize]byte
	buffer{0x0102030405060708, 0x090a0b0c, 64}.put(p[:])
	assert.Equal(t, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x00\x00\x00\x40", string(p[:]))
	b, err := parseBuffer(p[:])
	require.NoError(t, err)
	assert.Equal(t, buffer{0x0102030405060708, 0x090a0b0c, 64}, b)
	for want, b := range map[string]buffer{
		"a buffer of 0 bytes":     {},
		"a buffer of 65537 bytes": {size: MaxSize + 1},
		"beyond the end":          {addr: math.MaxUint64 - 5, size: 7},
	} {
		b.put(p[:])
		_, err = parseBuffer(p[:])
		assert.ErrorContains(t, err, want)
	}
	_, err = parseBuffer(p[:15])
	assert.ErrorContains(t, err, "a message of 15 bytes")
}

func FuzzParseBuffer(f *testing.F) {
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x00\x00\x00\x40"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := parseBuffer(p)
		if err != nil {
			return
		}
		require.LessOrEqual(t, b.size, uint32(MaxSize))
		require.NotZero(t, b.size)
		require.GreaterOrEqual(t, b.addr+uint64(b.size), b.addr)
		q := make([]byte, messageSize)
		b.put(q)
		require.Equal(t, p, q)
	})
}

// The data are a text without zeros, and one at the end: an rping sends back no more than that.
func TestFill(t *testing.T) {
	for _, size := range []int{MinSize, 2, 5, 12, 64, MaxSize} {
		b := make([]byte, size)
		fill(b, 12345)
		assert.Equal(t, size-1, strings.IndexByte(string(b), 0))
	}
	b := make([]byte, 20)
	fill(b, 1)
	assert.Equal(t, "rdma-ping-1: BCDEFG\x00", string(b))
}
