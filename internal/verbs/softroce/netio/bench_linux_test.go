package netio

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// counter counts packets and wakes who waits.
type counter struct {
	n    atomic.Int64
	more chan struct{}
}

func (c *counter) HandlePackets(ps []Packet) {
	c.n.Add(int64(len(ps)))
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// BenchmarkStream sends full batches of one process to itself over loopback, with as many
// packets under way as fit the default receive buffer many times over: what is lost is sent again.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{1024, 4096} {
		for _, off := range []string{"gso+gro", "gso", "none"} {
			for _, a := range []string{"127.0.0.1", "::1"} {
				b.Run(fmt.Sprintf("%d/%s/%s", size, off, a), func(b *testing.B) {
					c := &counter{more: make(chan struct{}, 1)}
					u := listen(b, Config{Port: freePort(b), Handler: c, NoGSO: off == "none", NoGRO: off != "gso+gro"})
					path := &Path{Local: addr(a), Remote: addr(a)}
					tb := NewTxBatch()
					data := pattern(size)
					window := int64(1<<20) / int64(size)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					var sent, lost int64
					for sent < int64(b.N) {
						for range min(MaxBatch, int64(b.N)-sent) {
							put(tb, path, uint32(sent), data)
							sent++
						}
						if err := u.Send(tb); err != nil {
							b.Fatal(err)
						}
						for sent-lost-c.n.Load() > window {
							select {
							case <-c.more:
							case <-time.After(20 * time.Millisecond):
								lost = sent - c.n.Load()
							}
						}
					}
					for end := time.Now().Add(20 * time.Millisecond); c.n.Load() < sent && time.Now().Before(end); {
						runtime.Gosched()
					}
					b.ReportMetric(float64(c.n.Load())*float64(size)/1e9/b.Elapsed().Seconds(), "GB/s")
					b.ReportMetric(float64(sent-c.n.Load())/float64(sent)*100, "%lost")
				})
			}
		}
	}
}

// BenchmarkPingPong is one packet there and back, polled and by the reader's goroutine.
func BenchmarkPingPong(b *testing.B) {
	for _, poll := range []bool{true, false} {
		b.Run(fmt.Sprintf("poll=%v", poll), func(b *testing.B) {
			c := &counter{more: make(chan struct{}, 1)}
			u := listen(b, Config{Port: freePort(b), Handler: c})
			path := &Path{Local: addr("127.0.0.1"), Remote: addr("127.0.0.1")}
			tb := NewTxBatch()
			data := pattern(64)
			b.ReportAllocs()
			for i := range int64(b.N) {
				put(tb, path, uint32(i), data)
				if err := u.Send(tb); err != nil {
					b.Fatal(err)
				}
				for c.n.Load() <= i {
					if poll {
						u.Poll()
					} else {
						<-c.more
					}
				}
			}
		})
	}
}
