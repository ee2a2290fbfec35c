// Package pattern makes bytes that both ends of a test can name without sending them: a stream
// that counts, and streams that look random and follow from a seed.
package pattern

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
)

// Counter is the stream 0, 1, ... 255, 0, ... that rstream sends and expects with -T v.
type Counter struct {
	next  byte
	total int64
}

// Fill writes the next len(b) bytes into b.
func (c *Counter) Fill(b []byte) {
	for i := range b {
		b[i] = c.next
		c.next++
	}
	c.total += int64(len(b))
}

// Check reports the first byte of b that is not the next one of the stream.
func (c *Counter) Check(b []byte) error {
	for i, got := range b {
		if got != c.next {
			return fmt.Errorf("byte %d of the stream is %#02x, not %#02x", c.total+int64(i), got, c.next)
		}
		c.next++
	}
	c.total += int64(len(b))
	return nil
}

// Random returns the stream of a seed. It never ends.
func Random(seed uint64) io.Reader {
	var key [32]byte
	copy(key[:], fmt.Sprintf("go-rdma interop %016x", seed))
	return rand.NewChaCha8(key)
}

// RandomN returns the first n bytes of a seed's stream as a reader.
func RandomN(seed uint64, n int64) io.Reader { return io.LimitReader(Random(seed), n) }

// Sum returns the SHA-256 of the first n bytes of a seed's stream in hexadecimal.
func Sum(seed uint64, n int64) string {
	h := sha256.New()
	if _, err := io.Copy(h, RandomN(seed, n)); err != nil {
		panic(err) // neither side of the copy can fail
	}
	return hex.EncodeToString(h.Sum(nil))
}
