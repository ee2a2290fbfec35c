//go:build linux

package shm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// beHostile dials, again and again, and writes garbage into all that it shares with its peer, and on the socket.
func beHostile(ctx context.Context, seed uint64, to netip.AddrPort) {
	for round := uint64(0); ; round++ {
		r := rand.New(rand.NewPCG(seed, round))
		s, err := dialTo(ctx, New(), to)
		if err != nil {
			continue // the victim did not want it, or this process's own words made no sense
		}
		q := s.qp.(*qp)
		rings := ringsOf(q)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { attack(r, q.dev, rings, stop) })
		if round%2 == 0 {
			wg.Go(func() { babble(rand.New(rand.NewPCG(seed, ^round)), q.dev.link, stop) })
		}
		use(rand.New(rand.NewPCG(seed, 1<<63|round)), s, inBoard(rand.New(rand.NewPCG(round, seed)), q.dev),
			time.Now().Add(time.Duration(round%20)*time.Millisecond))
		close(stop)
		wg.Wait()
		_, _ = s.close()
		q.dev.link.close() // the memory that stays busy is lost: this process ends soon
	}
}

// babble sends messages that may make sense.
func babble(r *rand.Rand, l *link, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(r.IntN(500)) * time.Microsecond):
		}
		var h [headerLen]byte
		b := append([]byte(nil), putHeader(&h, header{
			Kind: kind(r.IntN(int(lastMessage) + 2)), Flag: uint8(r.IntN(3)), Extra: uint16(r.IntN(40)), ID: uint32(r.IntN(4)),
		})...)
		switch r.IntN(4) {
		case 0:
			w := question{
				Seq: r.Uint64(), Addr: r.Uint64(), Offset: uint64(r.IntN(1 << 21)), Segment: uint32(r.IntN(4)), Key: r.Uint32(), Length: r.Uint32() >> r.IntN(32),
				Op: uint8(r.IntN(16)), Level: uint8(r.IntN(3)), Types: uint8(r.IntN(256)),
			}
			l.dev.everyQP(func(q *qp) {
				q.rmu.Lock()
				defer q.rmu.Unlock()
				if q.peer != 0 {
					order.PutUint32(b[4:], q.peer)
				}
			})
			b[0] = byte(msgAsk)
			b = w.put(b)
		case 1:
			for range r.IntN(60) {
				b = append(b, byte(r.Uint32()))
			}
		}
		l.send(b, -1)
	}
}

// inBoard names regions that the peer says it has.
func inBoard(r *rand.Rand, d *device) func() (addr uint64, key uint32) {
	return func() (uint64, uint32) {
		m := d.link.board.Load()
		if m == nil || !m.hold() {
			return r.Uint64(), r.Uint32()
		}
		defer m.release()
		n := uint32(r.IntN(8))
		return regWord(m.mem, n, regAddr).Load(), uint32(regWord(m.mem, n, regKey).Load())
	}
}

// TestHostileProcess lets other processes write garbage into what they share with this one, which works meanwhile. It does not crash, no call
// takes long, connections with others go on, and nothing is left when they are gone.
func TestHostileProcess(t *testing.T) {
	_, fds := held(t)
	lasts := 2 * time.Second
	if long() {
		lasts = 2 * time.Minute
	}
	victim := New()
	x, y := connected(t, victim, New())
	l, err := listenAt(victim)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), lasts)
	defer cancel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var children []*exec.Cmd
	for i := range uint64(2) {
		cmd, _ := start(t, fmt.Sprintf("hostile %d %v", seed+i, l.Addr()))
		context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		children = append(children, cmd)
	}
	var wg sync.WaitGroup
	type lost struct {
		mr    verbs.MR
		arena verbs.Arena
		pd    verbs.PD
	}
	var mu sync.Mutex
	var busy []lost
	met, worst := 0, time.Duration(0)
	for {
		id, err := l.GetRequest(ctx)
		if err != nil {
			break
		}
		wg.Go(func() {
			s, err := newSide(id)
			if err != nil {
				t.Error(err)
				return
			}
			own := mapAnonymous(t)
			mr, err := s.pd.RegMR(own, everything|verbs.FlushGlobal|verbs.FlushPersistent)
			if err != nil {
				t.Error(err)
				return
			}
			r := rand.New(rand.NewPCG(seed, uint64(id.(*cmid).conn)))
			if id.Accept(&sideParam) == nil {
				use(r, s, inBoard(r, s.qp.(*qp).dev), time.Now().Add(10*time.Millisecond))
			}
			begin := time.Now()
			if err := mr.Close(); err != nil { // busy, if the peer says so
				mu.Lock()
				busy = append(busy, lost{mr: mr})
				mu.Unlock()
			}
			isBusy, err := s.close()
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			met, worst = met+1, max(worst, took)
			if isBusy {
				busy = append(busy, lost{s.mr, s.arena, s.pd})
			} else if err != nil && !strings.Contains(err.Error(), "protection domain with") {
				t.Error(err)
			} else if err != nil {
				busy = append(busy, lost{pd: s.pd})
			}
		})
		ping(t, x, y)
		ping(t, y, x)
	}
	wg.Wait()
	for _, cmd := range children {
		kill(t, cmd)
	}
	t.Logf("%d connections, closed within %v, %d of them busy", met, worst, len(busy))
	require.Greater(t, met, 10)
	require.Less(t, worst, 5*time.Second)
	require.NoError(t, l.Close())
	for _, b := range busy { // with their peers they are free
		if b.mr != nil {
			require.Eventually(t, func() bool { return b.mr.Close() == nil }, 10*time.Second, time.Millisecond)
		}
		if b.arena != nil {
			require.NoError(t, b.arena.Close())
		}
	}
	for _, b := range busy {
		if b.pd != nil {
			require.Eventually(t, func() bool { return b.pd.Close() == nil }, 10*time.Second, time.Millisecond)
		}
	}
	for _, s := range []*side{x, y} {
		_, err := s.close()
		require.NoError(t, err)
	}
	requireNothingHeld(t, fds)
}

// mapAnonymous maps a page.
func mapAnonymous(t *testing.T) []byte {
	mem, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return mem
}
