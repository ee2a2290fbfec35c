package ibcm

import (
	"bytes"
	"fmt"
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

// TestFarREQs: another host's kernel is not asked again before it has had time, nor several times at once.
func TestFarREQs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := n.host(addrA, 1, nil), n.host(addrB, 2, nil)
		n.lose(AttrREQ, 4)
		ea := a.connect(t, addrB, func(p *ConnectParam) { p.Far = true })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{
			"0s 10.7.0.1 REQ 0", "1s 10.7.0.1 REQ -1", "3s 10.7.0.1 REQ -2", "7s 10.7.0.1 REQ 3", "13.144s 10.7.0.1 REQ 4",
			"13.145s 10.7.0.2 REP 0", "13.146s 10.7.0.1 RTU 0",
		}, n.attrs())
		n.lose(AttrDREQ, 100)
		n.mu.Lock()
		n.log, n.start = nil, time.Now()
		n.mu.Unlock()
		ea.c.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []string{"0s 10.7.0.1 DREQ 0", "200ms 10.7.0.1 DREQ 1", "600ms 10.7.0.1 DREQ 2"}, n.attrs(),
			"what only ends a connection does no harm")
		b.taken(0).c.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		a.empty(t)
		b.empty(t)
	})
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
// asks for, and says so. The peer then gives up, too: it would ask again, and wait as long again.
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
		require.Equal(t, "REJ", AttrREJ.String())
		require.Equal(t, 1, n.count(AttrREJ))
		require.Equal(t, []EventType{EventUnreachable, EventDone}, ea.types())
		require.Equal(t, syscall.ETIMEDOUT, ea.event(EventUnreachable).Err)
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
