package ring

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// manyMessages is more than 16 bits count.
const manyMessages = 1<<16 + 5000

// TestMessagesBeyond16Bits: limits and counters wrap, in both directions at once.
func TestMessagesBeyond16Bits(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	var wg sync.WaitGroup
	for _, end := range []*Conn{c, s} {
		wg.Go(func() {
			b := pattern(0, 2*manyMessages)
			for i := range manyMessages {
				if _, err := end.Write(b[2*i : 2*i+2]); !assert.NoError(t, err) {
					return
				}
				// A message each: what waits for room would go together.
				for end.Stats().MessagesWritten <= uint64(i) {
					time.Sleep(10 * time.Microsecond)
				}
			}
			assert.NoError(t, end.CloseWrite())
		})
		wg.Go(func() { readAll(t, end, pattern(0, 2*manyMessages)) })
	}
	wait(t, &wg)
	for _, end := range []*Conn{c, s} {
		st := end.Stats()
		require.GreaterOrEqual(t, st.MessagesRead, uint64(manyMessages))
		require.GreaterOrEqual(t, st.MessagesWritten, uint64(manyMessages))
	}
}

// TestLimitOfCBeyond16Bits: C does not mask the limit, so that up to 17 bits come, and of a peer that
// allows little at a time not one message more is sent.
func TestLimitOfCBeyond16Bits(t *testing.T) {
	const credits = 16
	w := newWorld(t, simnet.Options{})
	raw := w.rawServer(credits, nil)
	c, err := Client(context.Background(), w.resolve(), nil)
	require.NoError(t, err)
	p := <-raw
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range manyMessages {
			if _, err := c.Write([]byte{byte(i)}); !assert.NoError(t, err) {
				return
			}
			for c.Stats().MessagesWritten <= uint64(i) {
				time.Sleep(10 * time.Microsecond)
			}
		}
	})
	read, comp := uint32(0), uint32(credits/2) // rseq_no and rseq_comp of C, before they are cut to 16 bits
	used, entry := uint32(0), 1
	for read < manyMessages {
		wc := p.dataMessage()
		require.EqualValues(t, 1, wc.ByteLen)
		require.Equal(t, byte(read), p.mem[rawBuf+used%rawBufLen])
		read++
		used++
		switch {
		case used%(rawBufLen/2) == 0 && used > rawBufLen/2: // half of the buffer is free again
			d := descriptor{addr: p.mr.Addr() + rawBuf + uint64(used%rawBufLen), key: p.mr.RKey(), length: rawBufLen / 2}
			d.addr = p.mr.Addr() + rawBuf + uint64((used+rawBufLen/2)%rawBufLen)
			p.publish(uint32(uint16(read))+credits, &d, entry)
			entry = 1 - entry
			comp = read + credits/2
		case used == rawBufLen/2:
			d := descriptor{addr: p.mr.Addr() + rawBuf, key: p.mr.RKey(), length: rawBufLen / 2}
			p.publish(uint32(uint16(read))+credits, &d, entry)
			entry = 1 - entry
			comp = read + credits/2
		case read == comp:
			p.publish(uint32(uint16(read))+credits, nil, 0)
			comp += credits / 2
		}
	}
	wait(t, &wg)
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
}

// TestOddBuffers: a peer may publish as little as a byte, anywhere, and the same memory twice.
func TestOddBuffers(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	raw := w.rawServer(64, func(b []byte) { binary.BigEndian.PutUint32(b[36:], 1) })
	c, err := Client(context.Background(), w.resolve(), nil)
	require.NoError(t, err)
	p := <-raw
	const total = 500
	write(t, c, pattern(0, total))
	got := []byte{p.mem[rawBuf+p.dataMessage().ByteLen-1]}
	for i := 0; len(got) < total; i++ {
		n := min([]int{1, 1, 2, 3, 1, 7, 63}[i%7], total-len(got))
		off := rawBuf + []int{0, 1, 3, 4095, 0}[i%5]
		p.publish(uint32(i)+64, &descriptor{addr: p.mr.Addr() + uint64(off), key: p.mr.RKey(), length: uint32(n)}, (i+1)%2)
		require.EqualValues(t, n, p.dataMessage().ByteLen)
		got = append(got, p.mem[off:off+n]...)
	}
	require.Equal(t, pattern(0, total), got)

	// Two at once that overlap: the later bytes lie above the earlier ones.
	at := p.mr.Addr() + rawBuf
	p.publish(2000, &descriptor{addr: at, key: p.mr.RKey(), length: 10}, 0)
	p.publish(2000, &descriptor{addr: at + 5, key: p.mr.RKey(), length: 10}, 1)
	write(t, c, pattern(0, 20))
	require.EqualValues(t, 10, p.dataMessage().ByteLen)
	require.EqualValues(t, 10, p.dataMessage().ByteLen)
	require.Equal(t, append(pattern(0, 5), pattern(10, 10)...), p.mem[rawBuf:rawBuf+15])
	require.NoError(t, c.SetLinger(0))
	require.NoError(t, c.Close())
}

// TestBufferThatIsNotThere: what a peer publishes need not exist. The write fails at the peer and ends
// the connection.
func TestBufferThatIsNotThere(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for name, change := range map[string]func(b []byte){
		"longest":           func(b []byte) { binary.BigEndian.PutUint32(b[36:], 1<<32-1) },
		"end of memory":     func(b []byte) { binary.BigEndian.PutUint64(b[24:], 1<<64-rawBufLen-1) },
		"another key":       func(b []byte) { b[35]++ },
		"beginning of zero": func(b []byte) { binary.BigEndian.PutUint64(b[24:], 0) },
	} {
		t.Run(name, func(t *testing.T) {
			_, s := w.rawClient(300, 350, change)
			require.NoError(t, s.SetDeadline(time.Now().Add(10*time.Second)))
			var err error
			for n := 0; n < 4<<20 && err == nil; n += 64 << 10 {
				_, err = s.Write(make([]byte, 64<<10))
			}
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
}

// TestLongestMessage: a peer may fill the largest buffer there is with one message.
func TestLongestMessage(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(16, 64, nil)
	cur := []descriptor{p.theirs.buf}
	entry, sent, longest := 1, 0, uint32(0)
	for longest < 256<<10 {
		d := cur[0]
		cur = cur[1:]
		longest = max(longest, d.length)
		require.Equal(t, verbs.Success, p.post(d.addr, d.key, imm(immData, d.length), pattern(sent, int(d.length))))
		require.Equal(t, pattern(sent, int(d.length)), readN(t, s, int(d.length)))
		sent += int(d.length)
		require.Less(t, sent, 16<<20, "buffers do not grow")
		for len(cur) == 0 {
			if wc := p.take(); wc.ByteLen == descriptorLen {
				cur = append(cur, parseDescriptor(p.mem[entry*descriptorLen:], order(false)))
				entry = (entry + 1) % rawEntries
			}
		}
	}
	st := s.Stats()
	require.Equal(t, uint64(sent), st.BytesRead)
}

// TestLateReaders: both ends have filled all there is, and then one reads at a time.
func TestLateReaders(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair()
	data := pattern(0, 6<<20)
	var wg sync.WaitGroup
	for _, end := range []*Conn{c, s} {
		wg.Go(func() {
			write(t, end, data)
			assert.NoError(t, end.CloseWrite())
		})
	}
	full := func(end *Conn) bool {
		end.tx.mu.Lock()
		defer end.tx.mu.Unlock()
		return end.tx.stalled && !end.tx.ready()
	}
	require.Eventually(t, func() bool { return full(c) && full(s) }, 10*time.Second, time.Millisecond)
	st := c.Stats()
	require.LessOrEqual(t, st.ReadBuffer, defaultBuffer+2*c.rx.maxSegment())
	require.LessOrEqual(t, st.WriteBuffer, defaultBuffer+minBuffer)
	readAll(t, c, data)
	require.True(t, full(c), "the other direction stands still meanwhile")
	got, err := io.ReadAll(struct{ io.Reader }{s})
	require.NoError(t, err)
	require.Len(t, got, len(data))
	wait(t, &wg)
}

// TestMemoryAfterABurst: without keep-alive nothing looks at a connection that is idle. What it keeps
// is bounded, and gives way to small buffers as messages come, now and then.
func TestMemoryAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 20 * time.Microsecond})
		w.cfg = [2]Config{{NoKeepAlive: true}, {NoKeepAlive: true}}
		c, s := w.pair()
		go func() { _, _ = c.Write(make([]byte, 8<<20)) }()
		_, err := io.ReadFull(struct{ io.Reader }{s}, make([]byte, 8<<20))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		burst := s.Stats().ReadBuffer
		require.Greater(t, burst, 256<<10, "it has grown")
		require.LessOrEqual(t, burst, 3*256<<10)
		for n := 0; s.Stats().ReadBuffer > 4*segInitial; n += 4 << 10 {
			require.Less(t, n, 2<<20)
			write(t, c, make([]byte, 4<<10))
			readN(t, s, 4<<10)
			time.Sleep(time.Second)
		}
	})
}
