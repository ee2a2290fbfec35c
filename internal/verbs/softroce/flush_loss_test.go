package softroce

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// flushWithLoss appends records to a log as a database does: write, FLUSH, ATOMIC_WRITE of what is valid, FLUSH, all of many
// records posted at once. The disk keeps what it was told to; at any time what it says is valid must be there.
func flushWithLoss(t *testing.T, seed uint64) {
	const records, size = 60, 700
	rng := rand.New(rand.NewPCG(seed, 3))
	_, a, b := pair(t, seed, simnet.Options{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.05, Dup: 0.05, Reorder: 0.05})
	disk := make([]byte, 8+records*size)
	var mu sync.Mutex
	data := pattern(seed, records*size)
	valid := func() int {
		n := 0
		for i := 8; i > 0; i-- {
			n = n<<8 | int(disk[i-1])
		}
		return n
	}
	m := b.regPersistent(b.mem[:len(disk)], func(mem []byte) error {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		at := int(verbs.AddressOf(mem) - verbs.AddressOf(b.mem))
		copy(disk[at:], mem)
		n := valid()
		require.LessOrEqual(t, n, records)
		require.True(t, bytes.Equal(data[:n*size], disk[8:8+n*size]), "%d records are said to be there", n)
		return nil
	})
	defer func() { require.NoError(t, m.Close()) }()
	wake := make(chan struct{}, 1)
	x, _ := connected(a, b, link{mtu: 256, rd: 4, attr: verbs.QPInitAttr{MaxSendWR: 64}, notifyA: func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}})
	copy(a.mem, data)
	next, done := 0, 0
	for done < records {
		for ; next < records && next < done+16; next++ {
			off := uint64(8 + next*size)
			n := uint64(next + 1)
			word := []byte{byte(n), byte(n >> 8), 0, 0, 0, 0, 0, 0}
			x.send(
				verbs.SendWR{Op: verbs.OpWrite, SGL: a.sgl(next*size, size), RemoteAddr: m.Addr() + off, RKey: m.RKey()},
				verbs.SendWR{Op: verbs.OpFlush, RemoteAddr: m.Addr() + off, RKey: m.RKey(), FlushLength: size, FlushType: verbs.FlushPersistent},
				verbs.SendWR{Op: verbs.OpAtomicWrite, Inline: word, RemoteAddr: m.Addr(), RKey: m.RKey()},
				verbs.SendWR{
					ID: n, Op: verbs.OpFlush, Flags: verbs.Signaled, RemoteAddr: m.Addr(), RKey: m.RKey(), FlushLength: 8, FlushType: verbs.FlushPersistent,
				},
			)
		}
		for _, wc := range x.completions() {
			require.Equal(t, verbs.Success, wc.Status)
			mu.Lock()
			require.GreaterOrEqual(t, valid(), int(wc.ID), "what was acknowledged is persistent")
			mu.Unlock()
			done = int(wc.ID)
		}
		require.NoError(t, x.cq.Arm())
		select {
		case <-wake:
		case <-time.After(time.Millisecond):
		}
	}
	require.Equal(t, records, valid())
}
