package ibcm

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLife follows a connection from its REQ to its end, by the millisecond.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		ea := a.connect(t, addrB, nil)
		settle()
		eb := b.taken(0)
		require.Equal(t, []string{
			"0s 10.7.0.1 REQ 0", "1ms 10.7.0.2 REP 0", "2ms 10.7.0.1 RTU 0",
		}, n.attrs())
		require.Equal(t, []EventType{EventReplied}, ea.types())
		require.Equal(t, []EventType{EventEstablished}, eb.types())
		require.Equal(t, established, ea.c.currentState())
		require.Equal(t, established, eb.c.currentState())
		require.Equal(t, eb.c.ID(), ea.c.RemoteID())
		require.Equal(t, ea.c.ID(), eb.c.RemoteID())
		require.EqualValues(t, 0x020011, ea.c.RemoteQPN())
		require.EqualValues(t, 0x010011, eb.c.RemoteQPN())
		require.EqualValues(t, 1, ea.c.ID()>>24)
		require.EqualValues(t, 2, eb.c.ID()>>24)
		require.True(t, bytes.HasPrefix(ea.events[0].REP.PrivateData[:], []byte("welcome\x00")))
		require.True(t, bytes.HasPrefix(eb.req.PrivateData[IPHeaderSize:], []byte("hello\x00")))

		// An idle connection costs nothing.
		time.Sleep(time.Hour)
		require.Len(t, n.attrs(), 3)

		n.mu.Lock()
		n.log, n.start = nil, time.Now()
		n.mu.Unlock()
		eb.c.Disconnect()
		synctest.Wait()
		require.Equal(t, dreqSent, eb.c.currentState())
		time.Sleep(2 * latency)
		synctest.Wait()
		require.Equal(t, []string{"0s 10.7.0.2 DREQ 0", "1ms 10.7.0.1 DREP 0"}, n.attrs())
		// b is done with it; a may have to say it again.
		require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types())
		require.Equal(t, []EventType{EventReplied, EventDisconnected}, ea.types())
		require.NoError(t, eb.events[1].Err)
		time.Sleep(defaultLinger - 2*latency)
		synctest.Wait()
		require.Equal(t, []EventType{EventReplied, EventDisconnected}, ea.types())
		time.Sleep(latency)
		synctest.Wait()
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types())

		// TIMEWAIT is 2^(19-8) ms from the DREQ on.
		require.Equal(t, timeWait, ea.c.currentState())
		time.Sleep(2048*time.Millisecond - defaultLinger - latency)
		synctest.Wait()
		require.Equal(t, timeWait, ea.c.currentState())
		time.Sleep(2 * latency)
		synctest.Wait()
		a.empty(t)
		b.empty(t)
		require.Len(t, n.attrs(), 2)
	})
}

// TestLoss loses each message in turn, once and several times.
func TestLoss(t *testing.T) {
	for _, attr := range []Attr{AttrREQ, AttrREP, AttrRTU, AttrDREQ, AttrDREP} {
		for _, count := range []int{1, 2, 3} {
			t.Run(fmt.Sprint(attr, count), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newWire()
					a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
					n.lose(attr, count)
					ea := a.connect(t, addrB, nil)
					time.Sleep(2 * time.Second)
					synctest.Wait()
					eb := b.taken(0)
					require.NotNil(t, eb)
					require.Nil(t, b.taken(1), "one REQ, however often it came")
					require.Equal(t, established, ea.c.currentState())
					require.Equal(t, established, eb.c.currentState())
					require.Equal(t, []EventType{EventReplied}, ea.types())
					require.Equal(t, []EventType{EventEstablished}, eb.types())
					ea.c.Close()
					time.Sleep(10 * time.Second)
					synctest.Wait()
					require.Equal(t, []EventType{EventReplied, EventDone}, ea.types())
					require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types())
					require.GreaterOrEqual(t, n.count(attr), count)
					a.empty(t)
					b.empty(t)
				})
			})
		}
	}
}

// TestLostREJ loses refusals: the repeated REQ draws the same REJ, and the
// application is not asked again.
func TestLostREJ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		b.accept = false
		n.lose(AttrREJ, 2)
		ea := a.connect(t, addrB, nil)
		time.Sleep(10 * latency)
		require.NoError(t, b.taken(0).c.Reject(ReasonConsumer, []byte("info"), []byte("no thanks")))
		settle()
		require.Equal(t, []EventType{EventRejected, EventDone}, ea.types())
		rej := ea.events[0].REJ
		require.EqualValues(t, 28, rej.Reason)
		require.EqualValues(t, AboutREQ, rej.MessageRejected)
		require.EqualValues(t, 4, rej.RejectedInfoLength)
		require.True(t, bytes.HasPrefix(rej.ARI[:], []byte("info\x00")))
		require.True(t, bytes.HasPrefix(rej.PrivateData[:], []byte("no thanks\x00")))
		require.Nil(t, b.taken(1))
		require.Equal(t, 3, n.count(AttrREJ))
		require.Equal(t, 3, n.count(AttrREQ))
		time.Sleep(10 * time.Second)
		require.Equal(t, []EventType{EventDone}, b.taken(0).types())
		a.empty(t)
		b.empty(t)
	})
}

// TestUnreachable: sixteen intervals' time, quickly at first.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a := n.host(addrA, 1, nil)
		ea := a.connect(t, addrB, nil)
		time.Sleep(98*time.Second + 303*time.Millisecond)
		synctest.Wait()
		require.Empty(t, ea.types())
		log := n.attrs()
		require.Equal(t, []string{
			"0s 10.7.0.1 REQ 0", "200ms 10.7.0.1 REQ 1", "600ms 10.7.0.1 REQ 2", "1.4s 10.7.0.1 REQ 3", "3s 10.7.0.1 REQ 4",
			"6.2s 10.7.0.1 REQ 5", "12.344s 10.7.0.1 REQ 6", "18.488s 10.7.0.1 REQ 7",
		}, log[:8])
		require.Equal(t, "1m32.216s 10.7.0.1 REQ 19", log[len(log)-1])
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, []EventType{EventUnreachable, EventDone}, ea.types())
		require.Equal(t, syscall.ETIMEDOUT, ea.events[0].Err)
		time.Sleep(3 * time.Second)
		a.empty(t)
	})
}

// TestTimeout: a caller's own bound.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a := n.host(addrA, 1, nil)
		ea := a.connect(t, addrB, func(p *ConnectParam) { p.Timeout = 700 * time.Millisecond })
		time.Sleep(699 * time.Millisecond)
		require.Empty(t, ea.types())
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, []EventType{EventUnreachable, EventDone}, ea.types())
		require.Equal(t, "700ms 10.7.0.1 REJ 0", n.attrs()[3])
		d, ok := ParseDest(n.last[:])
		require.True(t, ok)
		require.Equal(t, Dest{Attr: AttrREJ, ServiceID: ServiceID(0x106, 7174)}, d)
	})
}

// TestSendError: the first send's error is Connect's, a later one is the error
// of the whole attempt when its time is over.
func TestSendError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		var fail error
		var mu sync.Mutex
		a := n.host(addrA, 1, func(c *Config) {
			c.Send = func(p Path, mad []byte, attempt int) error {
				mu.Lock()
				defer mu.Unlock()
				return fail
			}
		})
		fail = syscall.ENETUNREACH
		_, err := a.Connect(&ConnectParam{Path: Path{Local: addrA, Remote: addrB}, PathMTU: 3}, func(Event) {})
		require.Equal(t, syscall.ENETUNREACH, err)
		a.empty(t)

		fail = nil
		ea := a.connect(t, addrB, func(p *ConnectParam) { p.Timeout = time.Second })
		mu.Lock()
		fail = syscall.EHOSTUNREACH
		mu.Unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, syscall.EHOSTUNREACH, ea.event(EventUnreachable).Err)

		_, err = a.Connect(&ConnectParam{Path: Path{Local: addrA, Remote: addrB}, PrivateData: make([]byte, 57)}, nil)
		require.ErrorContains(t, err, "57 bytes")
	})
}

// TestSlowAccept: an application that takes its time is asked for by MRA.
func TestSlowAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		b.accept = false
		ea := a.connect(t, addrB, nil)
		time.Sleep(100 * time.Millisecond)
		require.Zero(t, n.count(AttrMRA), "none without a repeated REQ")
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, mraReqRcvd, ea.c.currentState())
		// 2^(21-8) + 2^(20-8) ms after the MRA the REQ is repeated.
		wait := 8192*time.Millisecond + 4096*time.Millisecond
		mra := 202 * time.Millisecond
		time.Sleep(mra + wait - 300*time.Millisecond - time.Millisecond)
		synctest.Wait()
		require.Equal(t, 2, n.count(AttrREQ))
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Equal(t, 3, n.count(AttrREQ))
		// Ten minutes of being asked for patience.
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, mraReqRcvd, ea.c.currentState())
		require.NoError(t, b.taken(0).c.Accept(acceptParam(b.taken(0).req)))
		settle()
		require.Equal(t, established, ea.c.currentState())
		require.Equal(t, established, b.taken(0).c.currentState())
		require.Nil(t, b.taken(1))
	})
}

// TestMRAThenSilence: patience is not endless.
func TestMRAThenSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		b.accept = false
		ea := a.connect(t, addrB, func(p *ConnectParam) { p.Timeout = 20 * time.Second })
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, mraReqRcvd, ea.c.currentState())
		b.Agent.Close()
		time.Sleep(32 * time.Second)
		synctest.Wait()
		require.Empty(t, ea.types())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []EventType{EventUnreachable, EventDone}, ea.types())
	})
}

// TestMRAOfREP: the active side may ask for patience too, and does so when its
// REP is repeated before Ready.
func TestMRAOfREP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		ea := &end{}
		c, err := a.Connect(&ConnectParam{
			Path: Path{Local: addrA, Remote: addrB}, QPN: 17, PathMTU: 3,
		}, ea.handle)
		require.NoError(t, err)
		ea.c = c
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, repRcvd, c.currentState())
		require.Equal(t, mraRepRcvd, b.taken(0).c.currentState())
		require.Equal(t, 2, n.count(AttrREP))
		require.Equal(t, 1, n.count(AttrMRA))
		time.Sleep(12 * time.Second)
		require.Equal(t, 2, n.count(AttrREP))
		require.NoError(t, c.Ready())
		settle()
		require.Equal(t, established, b.taken(0).c.currentState())
		require.ErrorIs(t, c.Ready(), ErrState)
	})
}

// TestREPUnanswered: the passive side gives up after the time its peer's REQ
// asks for, and says so.
func TestREPUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		n.fate = func(attr Attr, i int) []time.Duration {
			if attr == AttrREP {
				return nil
			}
			return []time.Duration{latency}
		}
		ea := a.connect(t, addrB, nil)
		time.Sleep(65 * time.Second)
		synctest.Wait()
		eb := b.taken(0)
		require.Empty(t, eb.types())
		time.Sleep(time.Second) // 16 times 4096 ms
		synctest.Wait()
		require.Equal(t, []EventType{EventUnreachable, EventDone}, eb.types())
		require.Equal(t, syscall.ETIMEDOUT, eb.events[0].Err)
		require.Equal(t, AttrREJ.String(), "REJ")
		require.Equal(t, 1, n.count(AttrREJ))
		_ = ea
	})
}

// TestAbandon: an active side that gives up tells the peer, in each state the
// peer may be in.
func TestAbandon(t *testing.T) {
	for _, accepted := range []bool{false, true} {
		t.Run(fmt.Sprint("accepted=", accepted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newWire()
				a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
				b.accept = accepted
				if accepted {
					n.lose(AttrREP, 1)
				}
				ea := a.connect(t, addrB, nil)
				time.Sleep(50 * time.Millisecond)
				ea.c.Close()
				time.Sleep(2 * latency)
				synctest.Wait()
				eb := b.taken(0)
				require.Equal(t, []EventType{EventRejected, EventDone}, eb.types())
				require.EqualValues(t, ReasonTimeout, eb.events[0].REJ.Reason)
				require.ErrorIs(t, eb.c.Accept(acceptParam(eb.req)), ErrState)
				require.Empty(t, ea.types(), "the peer may still have to be told")
				settle()
				require.Equal(t, []EventType{EventDone}, ea.types())
				time.Sleep(5 * time.Second)
				a.empty(t)
				b.empty(t)
			})
		})
	}
}

// TestAbandonLost: the REJ of one who gave up is lost; the REP draws another.
func TestAbandonLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		b.accept = false
		n.lose(AttrREJ, 1)
		ea := a.connect(t, addrB, nil)
		time.Sleep(50 * time.Millisecond)
		ea.c.Close()
		time.Sleep(50 * time.Millisecond)
		eb := b.taken(0)
		require.NoError(t, eb.c.Accept(acceptParam(eb.req)))
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []EventType{EventRejected, EventDone}, eb.types())
		require.EqualValues(t, ReasonInvalidCommID, eb.events[0].REJ.Reason)
	})
}

// TestDataBeforeRTU: a packet of the peer stands for its RTU.
func TestDataBeforeRTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		n.lose(AttrRTU, 1000)
		ea := a.connect(t, addrB, nil)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		eb := b.taken(0)
		require.Equal(t, repSent, eb.c.currentState())
		eb.c.CommEstablished()
		eb.c.CommEstablished()
		ea.c.CommEstablished() // means nothing there
		synctest.Wait()
		require.Equal(t, []EventType{EventEstablished}, eb.types())
		time.Sleep(time.Hour)
		require.Equal(t, 1, n.count(AttrREP))
	})
}

// TestBothDisconnect: DREQs that cross end the connection at both ends at once.
func TestBothDisconnect(t *testing.T) {
	for _, lost := range []Attr{0, AttrDREQ, AttrDREP} {
		for _, count := range []int{1, 2} {
			t.Run(fmt.Sprint(lost, count), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newWire()
					a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
					ea := a.connect(t, addrB, nil)
					settle()
					eb := b.taken(0)
					n.lose(lost, count)
					ea.c.Disconnect()
					eb.c.Disconnect()
					ea.c.Disconnect()
					time.Sleep(10 * time.Second)
					synctest.Wait()
					require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types())
					require.Equal(t, []EventType{EventEstablished, EventDisconnected, EventDone}, eb.types())
					require.NoError(t, ea.event(EventDisconnected).Err)
					require.NoError(t, eb.event(EventDisconnected).Err)
					a.empty(t)
					b.empty(t)
				})
			})
		}
	}
}

// TestDeadPeer: a DREQ is sent for DisconnectTimeout.
func TestDeadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		ea := a.connect(t, addrB, nil)
		settle()
		b.Agent.Close()
		n.mu.Lock()
		n.log, n.start = nil, time.Now()
		n.mu.Unlock()
		ea.c.Disconnect()
		time.Sleep(2999 * time.Millisecond)
		require.Equal(t, []EventType{EventReplied}, ea.types())
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []EventType{EventReplied, EventDisconnected, EventDone}, ea.types())
		require.Equal(t, syscall.ETIMEDOUT, ea.event(EventDisconnected).Err)
		require.Equal(t, []string{
			"0s 10.7.0.1 DREQ 0", "200ms 10.7.0.1 DREQ 1", "600ms 10.7.0.1 DREQ 2", "1.4s 10.7.0.1 DREQ 3",
		}, n.attrs())
		require.NoError(t, b.taken(0).event(EventEstablished).Err)
		require.Len(t, b.taken(0).types(), 1, "no event after the agent's Close")
		_, err := b.Connect(&ConnectParam{}, nil)
		require.Error(t, err)
	})
}

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
