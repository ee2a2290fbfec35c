package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// Dialer makes the connections of a client.
type Dialer func(ctx context.Context) (net.Conn, error)

// client is a connection on which the server knows what is wanted. It is closed when ctx ends.
func client(ctx context.Context, dial Dialer, k kind, size int) (c net.Conn, done func(), err error) {
	if c, err = dial(ctx); err != nil {
		return nil, nil, err
	}
	unhook := context.AfterFunc(ctx, func() { _ = c.Close() })
	done = func() {
		unhook()
		_ = c.Close()
	}
	if _, err := c.Write(header(k, size)); err != nil {
		done()
		return nil, nil, err
	}
	return c, done, nil
}

// maxRoundTrips bounds the memory that the figures of one run take.
const maxRoundTrips = 8 << 20

// RoundTrips sends a message of size bytes, waits until it is back, and so on for the time of limit. It appends to took how long
// each took. tell is called now and then, with the number of round trips.
func RoundTrips(ctx context.Context, dial Dialer, size int, limit time.Duration, took []time.Duration, tell func(n int)) ([]time.Duration, error) {
	c, done, err := client(ctx, dial, echo, size)
	if err != nil {
		return took, err
	}
	defer done()
	out, in := make([]byte, size), make([]byte, size)
	for i := range out {
		out[i] = byte(i)
	}
	const warm = 10
	start := time.Now()
	for i := 0; ; i++ {
		stamp(out, i)
		began := time.Now()
		if i == warm {
			start = began
		}
		if _, err := c.Write(out); err != nil {
			return took, cause(ctx, err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return took, cause(ctx, err)
		}
		now := time.Now()
		if !bytes.Equal(in, out) {
			return took, fmt.Errorf("message %d came back changed", i)
		}
		if i < warm {
			continue
		}
		took = append(took, now.Sub(began))
		if i%256 == 0 {
			tell(len(took))
		}
		if now.Sub(start) >= limit || len(took) >= maxRoundTrips {
			return took, ctx.Err()
		}
	}
}

// stamp makes a message differ from the one before.
func stamp(b []byte, i int) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(i))
	copy(b, n[8-min(8, len(b)):])
}

// Stream writes for the time of limit, size bytes at a time, and returns how many bytes the server got in what time, the last of
// them included. tell is called now and then, with the number of bytes.
func Stream(ctx context.Context, dial Dialer, size int, limit time.Duration, tell func(n uint64)) (total uint64, took time.Duration, err error) {
	c, done, err := client(ctx, dial, sink, size)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	w, ok := c.(interface{ CloseWrite() error })
	if !ok {
		return 0, 0, fmt.Errorf("%T cannot end a stream and go on reading", c)
	}
	buf := make([]byte, size)
	for i := range buf {
		buf[i] = byte(i)
	}
	start := time.Now()
	for i := 0; time.Since(start) < limit; i++ {
		n, err := c.Write(buf)
		total += uint64(n)
		if err != nil {
			return total, 0, cause(ctx, err)
		}
		if i%16 == 0 {
			tell(total)
		}
	}
	if err := w.CloseWrite(); err != nil {
		return total, 0, cause(ctx, err)
	}
	var n [8]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return total, 0, cause(ctx, fmt.Errorf("waiting for the server to have it all: %w", err))
	}
	took = time.Since(start)
	if got := binary.BigEndian.Uint64(n[:]); got != total {
		return total, took, fmt.Errorf("%d bytes were written, and the server got %d", total, got)
	}
	return total, took, ctx.Err()
}

// cause is why a connection failed: ctx, if that ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
