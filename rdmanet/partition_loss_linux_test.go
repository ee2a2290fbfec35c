package rdmanet_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/rdmanet"
)

// patience is how long the transport waits for an answer before the connection is dead: 8
// local ACK timeouts of code 19, 4.096 us * 2^19 (IBTA 9.9.2.1.3).
const patience = 8 * (4096 << 19) * time.Nanosecond

// localNet is a network in a rack.
var localNet = simnet.Options{Delay: 50 * time.Microsecond}

// requireTimedOut: the error of a peer that fell silent, as it is documented.
func requireTimedOut(t *testing.T, err error) {
	t.Helper()
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	require.True(t, op.Timeout())
	var e *rdmanet.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "softroce", e.Provider)
	require.NotEmpty(t, e.Hint)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// works connects, and sends bytes both ways.
func (s *sim) works(l *rdmanet.Listener) {
	s.t.Helper()
	c, sv := s.pair(l)
	for _, e := range [][2]*rdmanet.Conn{{c, sv}, {sv, c}} {
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(s.t, writePattern(e[0], 100_000, 3000)) })
		require.NoError(s.t, readPattern(e[1], 100_000))
		wg.Wait()
	}
	require.NoError(s.t, c.Close())
	require.NoError(s.t, sv.Close())
}

// TestPartitionHeals before the transport's patience ends: streams go on, busy or idle, and nothing
// is lost.
func TestPartitionHeals(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second, patience - 2500*time.Millisecond} {
		t.Run(d.String(), func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				s := newSim(t, 1, localNet)
				l := s.listen()
				c, sv := s.pair(l)
				idle, idleServer := s.pair(l)
				total := 4 << 20
				if race.Enabled {
					total /= 8
				}
				var got [2]atomic.Int64
				var wg sync.WaitGroup
				for i, e := range []*rdmanet.Conn{c, sv} {
					wg.Go(func() {
						var p pattern
						b := make([]byte, 4000)
						for range total / len(b) {
							p.fill(b)
							if _, err := e.Write(b); !assert.NoError(t, err) {
								return
							}
							time.Sleep(50 * time.Microsecond)
						}
						assert.NoError(t, e.CloseWrite())
					})
					wg.Go(func() {
						var p pattern
						b := make([]byte, 10000)
						for {
							n, err := e.Read(b)
							assert.Negative(t, p.check(b[:n]))
							got[i].Add(int64(n))
							if err == io.EOF {
								return
							} else if !assert.NoError(t, err) {
								return
							}
						}
					})
				}
				time.Sleep(3 * time.Millisecond)
				s.cut()
				time.Sleep(d)
				before := got[0].Load() + got[1].Load()
				s.heal()
				start := time.Now()
				// What is repeated, and when, is known to the sender alone: 2 s apart at most.
				for got[0].Load()+got[1].Load() == before {
					time.Sleep(time.Millisecond)
					require.Less(t, time.Since(start), min(2*d+100*time.Millisecond, 2100*time.Millisecond))
				}
				wg.Wait()
				require.EqualValues(t, total/4000*4000, got[0].Load())
				require.EqualValues(t, total/4000*4000, got[1].Load())

				time.Sleep(time.Hour)
				s.cut()
				time.Sleep(d)
				s.heal()
				time.Sleep(time.Hour)
				wg.Go(func() { assert.NoError(t, writePattern(idle, 1000, 1000)) })
				require.NoError(t, readPattern(idleServer, 1000))
				wg.Wait()
			})
		})
	}
}

// TestPartitionLasts: both ends learn it in the time that is documented, whatever they do, and
// what follows on the healed network does not suffer.
func TestPartitionLasts(t *testing.T) {
	const keepAlive = 15 * time.Second // idle time until the peer is asked
	for _, c := range []struct {
		name           string
		client, server bool // writing
	}{{"both write", true, true}, {"the client writes", true, false}, {"the server writes", false, true}, {"idle", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				s := newSim(t, 1, localNet)
				l := s.listen()
				cl, sv := s.pair(l)
				time.Sleep(time.Second)
				// A sign of life from both, at the same time.
				for _, e := range []*rdmanet.Conn{cl, sv} {
					_, err := e.Write([]byte("x"))
					require.NoError(t, err)
				}
				for _, e := range []*rdmanet.Conn{cl, sv} {
					_, err := e.Read(make([]byte, 1))
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
				s.cut()
				var wg sync.WaitGroup
				ends := []*rdmanet.Conn{cl, sv}
				for i, writes := range []bool{c.client, c.server} {
					e := ends[i]
					wg.Go(func() {
						start := time.Now()
						limit := patience
						var err error
						if writes {
							for err == nil {
								_, err = e.Write(make([]byte, 100_000))
							}
						} else {
							limit += keepAlive - time.Second
							_, err = e.Read(make([]byte, 1))
						}
						took := time.Since(start)
						requireTimedOut(t, err)
						assert.InDelta(t, limit, took, float64(10*time.Millisecond))
						_, err = e.Read(make([]byte, 1))
						requireTimedOut(t, err)
						_, err = e.Write(make([]byte, 1))
						requireTimedOut(t, err)
						start = time.Now()
						assert.NoError(t, e.Close())
						assert.Less(t, time.Since(start), 10*time.Millisecond, "there is nothing to wait for")
					})
				}
				wg.Wait()
				_, err := (&rdmanet.Dialer{Device: "sim0", Timeout: time.Second}).Dial("rdma", l.Addr().String())
				require.ErrorIs(t, err, context.DeadlineExceeded)
				s.heal()
				s.works(l)
			})
		})
	}
}

// TestPartitionInOneDirection: packets of one end alone are lost. Both notice.
func TestPartitionInOneDirection(t *testing.T) {
	for _, from := range []string{"client", "server"} {
		t.Run("of the "+from, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				s := newSim(t, 1, localNet)
				l := s.listen()
				cl, sv := s.pair(l)
				src := s.client
				if from == "server" {
					src = s.server
				}
				heal := s.Filter(func(f *simnet.Frame) bool { return f.Src.Addr() == src })
				start := time.Now()
				var wg sync.WaitGroup
				for _, e := range []*rdmanet.Conn{cl, sv} {
					wg.Go(func() {
						var err error
						for err == nil {
							_, err = e.Write(make([]byte, 100_000))
						}
						requireTimedOut(t, err)
						assert.InDelta(t, patience, time.Since(start), float64(10*time.Millisecond))
						assert.NoError(t, e.Close())
					})
				}
				wg.Wait()
				heal()
				s.works(l)
			})
		})
	}
}

// TestPartitionWhileClosing: what is said in the end is lost, each part of it. Close returns when it
// said it would, and the peer learns of the end.
func TestPartitionWhileClosing(t *testing.T) {
	t.Run("everything", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			c, sv := s.pair(l)
			s.cut()
			start := time.Now()
			require.NoError(t, c.Close())
			require.Equal(t, 2*time.Second, time.Since(start))
			require.NoError(t, rdmanet.Drain(context.Background()))
			require.LessOrEqual(t, time.Since(start), 20*time.Second)
			_, err := sv.Read(make([]byte, 1))
			requireTimedOut(t, err)
			require.LessOrEqual(t, time.Since(start), 15*time.Second+patience)
			s.heal()
			s.works(l)
		})
	})
	t.Run("for a while", func(t *testing.T) {
		simulated(t, func(t *testing.T) {
			s := newSim(t, 1, localNet)
			l := s.listen()
			c, sv := s.pair(l)
			s.cut()
			require.NoError(t, writePattern(c, 200_000, 5000))
			require.NoError(t, c.Close())
			time.Sleep(5 * time.Second)
			s.heal()
			require.NoError(t, readPattern(sv, 200_000))
			_, err := sv.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, sv.Close())
		})
	})
	for name, attr := range map[string]ibcm.Attr{"DREQ": ibcm.AttrDREQ, "DREP": ibcm.AttrDREP} {
		t.Run("every "+name, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				s := newSim(t, 1, localNet)
				l := s.listen()
				s.Filter(isMessage(attr))
				c, sv := s.pair(l)
				start := time.Now()
				require.NoError(t, c.Close())
				require.Less(t, time.Since(start), 10*time.Millisecond)
				_, err := sv.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err, "DISCONNECT says so")
				_, err = sv.Write(make([]byte, 1))
				require.ErrorIs(t, err, syscall.EPIPE)
				require.NoError(t, sv.Close())
				require.NoError(t, rdmanet.Drain(context.Background()))
				require.Less(t, time.Since(start), 10*time.Second)
				s.works(l)
			})
		})
	}
}

// TestPartitionAtAnyMoment of dialing, talking and closing, and for any time: each end gets
// all of the other's bytes and an end, or one of the errors it may.
func TestPartitionAtAnyMoment(t *testing.T) {
	n := 50
	switch {
	case long:
		n = 2000
	case race.Enabled:
		n = 6
	}
	for _, seed := range simnet.Seeds(t, n, long) {
		simulated(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s := newSim(t, seed, simnet.Options{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.02, Dup: 0.02, Reorder: 0.02})
			l := s.listen()
			total := r.IntN(500_000)
			pauses := time.Duration(r.IntN(5)) * time.Millisecond
			// talk is what each end does: it sends a stream, and reads one to its end.
			talk := func(who string, c net.Conn) (all bool) {
				var wg sync.WaitGroup
				wg.Go(func() {
					var p pattern
					b := make([]byte, 5000)
					for sent := 0; sent < total; {
						k := min(len(b), total-sent)
						p.fill(b[:k])
						if _, err := c.Write(b[:k]); err != nil {
							mayFail(t, who+" writes", err)
							return
						}
						sent += k
						time.Sleep(pauses)
					}
					if err := c.(*rdmanet.Conn).CloseWrite(); err != nil {
						mayFail(t, who+" ends", err)
					}
				})
				var p pattern
				b := make([]byte, 5000)
				for {
					k, err := c.Read(b)
					if !assert.Negative(t, p.check(b[:k])) {
						break
					}
					if err == io.EOF {
						all = assert.EqualValues(t, total, p.n, "%s: an end in the middle", who)
						break
					} else if err != nil {
						mayFail(t, who+" reads", err)
						break
					}
				}
				wg.Wait()
				assert.NoError(t, c.Close())
				return all
			}
			var servers sync.WaitGroup
			servers.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						assert.ErrorIs(t, err, net.ErrClosed)
						return
					}
					servers.Go(func() { talk("server", c) })
				}
			})
			var clients sync.WaitGroup
			for range 3 {
				delay := time.Duration(r.IntN(20)) * time.Millisecond
				clients.Go(func() {
					time.Sleep(delay)
					c, err := s.dial(l.Addr().String())
					if err != nil {
						mayFail(t, "dial", err)
						return
					}
					talk("client", c)
				})
			}
			time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
			s.cut()
			time.Sleep(time.Duration(r.IntN(30_000)) * time.Millisecond)
			s.heal()
			clients.Wait()
			// Whatever happened, the next connection works.
			c, err := s.dial(l.Addr().String())
			require.NoError(t, err)
			require.True(t, talk("last client", c))
			require.NoError(t, l.Close())
			servers.Wait()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func mayFail(t *testing.T, what string, err error) {
	t.Helper()
	for _, want := range []error{syscall.ETIMEDOUT, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, want) {
			return
		}
	}
	t.Errorf("%s: %v", what, err)
}
