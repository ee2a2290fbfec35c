package ibcm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStale: a REQ from the queue pair of a live connection shows that the
// peer has forgotten that one.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		a.connect(t, addrB, nil)
		settle()
		eb := b.taken(0)

		// The peer starts again with the same GUID and queue pair.
		a.Agent.Close()
		a2 := n.host(addrA, 1, nil)
		a2.guid = a.guid
		a2.newID() // another one than before
		a2.cfg.Rand = rand.New(&lockedSource{src: rand.NewPCG(99, 99)}).Uint64
		ea2 := a2.connect(t, addrB, nil)
		settle()
		require.Equal(t, []EventType{EventRejected, EventDone}, ea2.types())
		require.EqualValues(t, ReasonStale, ea2.events[0].REJ.Reason)
		require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types())
		require.Equal(t, syscall.ECONNRESET, eb.events[1].Err)
		require.EqualValues(t, 1, b.Stats().StaleREQs)
		require.Equal(t, 1, n.count(AttrDREQ))
		require.Equal(t, 1, n.count(AttrDREP), "of a connection the peer does not know")

		// The next attempt succeeds.
		ea3 := a2.connect(t, addrB, nil)
		settle()
		require.Equal(t, established, ea3.c.currentState())

		// Another host with the same GUID and queue pair is another peer.
		addrC := addrB.Next()
		c := n.host(addrC, 5, nil)
		c.guid = a.guid
		ec := c.connect(t, addrB, nil)
		settle()
		require.Equal(t, established, ec.c.currentState())
		require.Equal(t, established, ea3.c.currentState())
	})
}

// TestStaleREP: the same of a REP.
func TestStaleREP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		e1 := a.connect(t, addrB, nil)
		settle()
		// b forgets the connection, and gives its queue pair to the next.
		b.mu.Lock()
		old := b.passive[0]
		b.passive = nil
		b.mu.Unlock()
		b.Agent.mu.Lock()
		old.c.forget()
		b.Agent.mu.Unlock()
		e2 := a.connect(t, addrB, func(p *ConnectParam) { p.QPN = 0x010111 })
		time.Sleep(20 * latency)
		synctest.Wait()
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, e1.types())
		require.Equal(t, syscall.ECONNRESET, e1.events[1].Err)
		require.Equal(t, []EventType{EventRejected, EventDone}, b.taken(0).types())
		// The refusal is remembered there for as long as REQs of it may be under way.
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, established, e2.c.currentState())
	})
}

// TestLimits: neither requests nor the memory of them grow without bound.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		b := n.host(addrB, 2, func(c *Config) { c.MaxHalfOpen = 10 })
		b.accept = false
		req := func(i int) []byte {
			p := &ConnectParam{Path: Path{Local: addrA, Remote: addrB}, QPN: uint32(100 + i), PathMTU: 3}
			q, err := p.req(uint32(i+1), 7)
			require.NoError(t, err)
			return Encode(NewHeader(1, q), q)[:]
		}
		path := Path{Local: addrB, Remote: addrA}
		for i := range 15 {
			b.HandleMAD(path, req(i))
		}
		require.EqualValues(t, 5, b.Stats().DroppedREQs)
		require.Len(t, b.passive, 10)
		require.Zero(t, n.count(AttrREJ), "a peer that is not answered tries again")
		for i := range 10 {
			b.taken(i).c.Reject(ReasonConsumer, nil, nil)
		}
		require.Equal(t, 10, b.known())
		for i := range 10 {
			b.HandleMAD(path, req(20+i))
		}
		require.Len(t, b.passive, 20)
		for i := range 10 {
			b.taken(10+i).c.Reject(ReasonConsumer, nil, nil)
		}
		require.Equal(t, 10, b.known())
		time.Sleep(8 * time.Second)
		synctest.Wait()
		b.empty(t)

		b.verdict = Dropped
		b.HandleMAD(path, req(40))
		b.HandleMAD(path, req(40))
		require.EqualValues(t, 7, b.Stats().DroppedREQs)
		require.Zero(t, b.Stats().DuplicateREQs)
		b.empty(t)

		b.verdict = ReasonInvalidServiceID
		b.HandleMAD(path, req(41))
		b.HandleMAD(path, req(41))
		require.EqualValues(t, 1, b.Stats().DuplicateREQs)
		require.Equal(t, 22, n.count(AttrREJ))
	})
}

// TestCrowd: peers that ask and never answer do not hold the places of others for long.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		b := n.host(addrB, 2, func(c *Config) { c.MaxHalfOpen = 64 })
		for i := range 64 {
			p := &ConnectParam{Path: Path{Local: addrA, Remote: addrB}, QPN: uint32(100 + i), PathMTU: 3}
			q, err := p.req(uint32(i+1), 7)
			require.NoError(t, err)
			q.LocalCMResponseTimeout, q.MaxCMRetries = 31, 15
			b.HandleMAD(Path{Local: addrB, Remote: addrA}, Encode(NewHeader(1, q), q)[:])
			synctest.Wait()
		}
		open := func() int {
			b.Agent.mu.Lock()
			defer b.Agent.mu.Unlock()
			return b.halfOpen
		}
		require.Equal(t, 64, open())
		time.Sleep(crowdPatience + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 64/crowdPart, open(), "these came before the crowd")
		a := n.host(netip.MustParseAddr("10.7.0.3"), 3, nil)
		e := a.connect(t, addrB, nil)
		settle()
		require.Equal(t, established, e.c.currentState())
	})
}

// TestMRAOnce: a peer that asks for patience again and again is not waited for.
func TestMRAOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		b := n.host(addrB, 2, nil)
		p := &ConnectParam{Path: Path{Local: addrA, Remote: addrB}, QPN: 100, PathMTU: 3}
		q, err := p.req(1, 7)
		require.NoError(t, err)
		path := Path{Local: addrB, Remote: addrA}
		b.HandleMAD(path, Encode(NewHeader(1, q), q)[:])
		synctest.Wait()
		eb := b.taken(0)
		for range 10 {
			m := &MRA{LocalCommID: 1, RemoteCommID: eb.c.ID(), MessageMRAed: AboutREP, ServiceTimeout: 31}
			b.HandleMAD(path, Encode(NewHeader(1, m), m)[:])
			time.Sleep(30 * time.Second)
		}
		synctest.Wait()
		require.Equal(t, []EventType{EventUnreachable, EventDone}, eb.types())
	})
}

// TestAbort: the peer learns that the connection is broken, by a message that asks for no answer.
func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		ea := a.connect(t, addrB, nil)
		settle()
		eb := b.taken(0)
		eb.c.Abort()
		synctest.Wait()
		require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types())
		settle()
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types())
		require.Equal(t, syscall.ECONNRESET, ea.event(EventDisconnected).Err)
		eb.c.Abort()
		ea.c.Abort()
		require.Equal(t, 1, n.count(AttrREJ))
		require.Zero(t, n.count(AttrDREQ))

		// Where there is no connection yet it is Disconnect.
		b.accept = false
		ea = a.connect(t, addrB, nil)
		time.Sleep(2 * latency)
		synctest.Wait()
		ea.c.Abort()
		settle()
		require.Equal(t, []EventType{EventRejected, EventDone}, b.taken(1).types())
		time.Sleep(8 * time.Second)
		synctest.Wait()
		a.empty(t)
		b.empty(t)
	})
}

// TestPeerDied: what is known otherwise ends a connection at once.
func TestPeerDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a := n.host(addrA, 1, nil)
		n.host(addrB, 2, nil)
		ea := a.connect(t, addrB, nil)
		settle()
		ea.c.PeerDied(syscall.ECONNRESET)
		ea.c.PeerDied(syscall.ECONNRESET)
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types())
		require.Equal(t, syscall.ECONNRESET, ea.events[1].Err)
		ea.c.Disconnect()
		require.Zero(t, n.count(AttrDREQ))
		e2 := a.connect(t, addrA.Prev(), nil)
		e2.c.PeerDied(syscall.ECONNRESET)
		require.Equal(t, []EventType{EventUnreachable, EventDone}, e2.types())
		time.Sleep(5 * time.Second)
		a.empty(t)
	})
}

// TestHandlerCallsBack: methods may be called from the handler, whose calls
// come one at a time, in order.
func TestHandlerCallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		var in, most int
		var mu sync.Mutex
		var ts []EventType
		var c *Conn
		ready := make(chan struct{})
		c, err := a.Connect(&ConnectParam{Path: Path{Local: addrA, Remote: addrB}, QPN: 17, PathMTU: 3}, func(e Event) {
			<-ready
			mu.Lock()
			in++
			most = max(most, in)
			ts = append(ts, e.Type)
			mu.Unlock()
			switch e.Type {
			case EventReplied:
				c.Ready()
				c.Disconnect()
				time.Sleep(time.Second) // the DREP comes meanwhile
			case EventDisconnected:
				c.Disconnect()
				c.Close()
			}
			mu.Lock()
			in--
			mu.Unlock()
		})
		require.NoError(t, err)
		close(ready)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ts)
		require.Equal(t, 1, most)
		require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, b.taken(0).types())
	})
}

// TestSIDRUnsupported: somebody who asks for a datagram service gets an answer.
func TestSIDRUnsupported(t *testing.T) {
	var sent [][]byte
	a := NewAgent(Config{
		Clock: bubbleClock{}, Rand: rand.Uint64,
		Send: func(p Path, mad []byte, _ int) error { sent = append(sent, mad); return nil },
	})
	ask := capturedMAD(t, "roce-udaddy-v4:5")
	a.HandleMAD(Path{Local: ask.dst, Remote: ask.src}, ask.mad)
	require.Len(t, sent, 1)
	want := capturedMAD(t, "roce-sidr-rej-v4:2") // of another request
	h, m, err := Decode(want.mad)
	require.NoError(t, err)
	m.(*SIDRREP).RequestID = 0x3df5f134
	h.TransactionID = 0x0000000234f1f53d
	require.Equal(t, Encode(h, m)[:], sent[0])
}

// TestRandomNetwork connects and disconnects over networks that lose, repeat
// and reorder: both sides always come to the same end.
func TestRandomNetwork(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			n := newWire()
			rnd := rand.New(&lockedSource{src: rand.NewPCG(seed, 7)})
			n.fate = func(Attr, int) (ds []time.Duration) {
				for range 3 {
					if rnd.IntN(100) < 45 {
						ds = append(ds, time.Duration(rnd.IntN(400))*time.Millisecond)
					}
				}
				return ds
			}
			stubborn := func(c *Config) { c.DisconnectTimeout = time.Minute }
			a, b := n.host(addrA, 1, stubborn), n.host(addrB, 2, stubborn)
			var ends []*end
			for i := range uint32(5) {
				ends = append(ends, a.connect(t, addrB, func(p *ConnectParam) { p.QPN = 100 + i }))
			}
			time.Sleep(60 * time.Second)
			synctest.Wait()
			peer := func(ea *end) *end {
				for _, eb := range b.passive {
					if eb.c.ID() == ea.c.RemoteID() {
						return eb
					}
				}
				return nil
			}
			for _, ea := range ends {
				require.Equal(t, established, ea.c.currentState(), "seed %d", seed)
				eb := peer(ea)
				require.NotNil(t, eb, "seed %d", seed)
				require.Equal(t, established, eb.c.currentState(), "seed %d", seed)
				require.Equal(t, []EventType{EventEstablished}, eb.types())
			}
			for _, ea := range ends {
				if rnd.IntN(2) == 0 {
					ea.c.Disconnect()
				}
				if rnd.IntN(2) == 0 || ea.c.currentState() == established {
					peer(ea).c.Disconnect()
				}
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			for _, ea := range ends {
				eb := peer(ea)
				require.Equal(t, EventDone, ea.types()[len(ea.types())-1], "seed %d: %v", seed, ea.types())
				require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types(), "seed %d", seed)
				require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types(), "seed %d", seed)
			}
			require.Len(t, b.passive, 5)
			a.empty(t)
			b.empty(t)
		})
	}
}

// TestConcurrent is for the race detector: everything at once from everywhere.
func TestConcurrent(t *testing.T) {
	n := newWire()
	n.fate = func(Attr, int) []time.Duration { return []time.Duration{0} }
	a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
	const workers, rounds = 8, 50
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				done, replied := make(chan struct{}), make(chan struct{})
				c, err := a.Connect(&ConnectParam{
					Path: Path{Local: addrA, Remote: addrB}, PathMTU: 3, QPN: uint32(1000 + w*rounds + i),
				}, func(e Event) {
					switch e.Type {
					case EventReplied:
						close(replied)
					case EventDone:
						close(done)
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 == 0 {
					c.Close()
					<-done
					continue
				}
				<-replied
				if err := c.Ready(); err != nil && !errors.Is(err, ErrState) {
					t.Error(err)
				}
				go c.Disconnect()
				go c.Disconnect()
				<-done
				c.Close()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.passive {
			if len(e.types()) == 0 || e.types()[len(e.types())-1] != EventDone {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond)
	a.Agent.Close()
	b.Agent.Close()
}

// TestOwnSubnet: with a hop limit of 1 the path is not routed, and rdma_cm says so.
func TestOwnSubnet(t *testing.T) {
	p := &ConnectParam{Path: Path{Local: addrA, Remote: addrB, HopLimit: 1}, PathMTU: 3}
	q, err := p.req(1, 2)
	require.NoError(t, err)
	require.True(t, q.Primary.SubnetLocal)
	require.EqualValues(t, 1, q.Primary.HopLimit)
	require.Zero(t, q.Primary.LocalLID)
	require.Zero(t, q.Primary.RemoteLID)
}

// TestTooMuch: private data that does not fit is refused before anything is sent.
func TestTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, "REQ received")
		require.Error(t, s.c.Accept(&AcceptParam{QPN: 5, PrivateData: make([]byte, 197)}))
		require.Error(t, s.c.Reject(ReasonConsumer, make([]byte, 73), nil))
		require.Error(t, s.c.Reject(ReasonConsumer, nil, make([]byte, 149)))
		require.True(t, s.c.Alive())
		require.Equal(t, s.path, s.c.Path())
		require.Empty(t, s.told())
		require.NoError(t, s.c.Accept(&AcceptParam{QPN: 5, PrivateData: make([]byte, 196)}))
		require.True(t, s.c.Alive())
		require.ErrorIs(t, s.c.Reject(ReasonConsumer, nil, nil), ErrState)
		s.c.Disconnect()
		require.False(t, s.c.Alive())
	})
}
