package ibcm

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// recorder is an agent whose datagrams are kept.
type recorder struct {
	*Agent
	sent []Message
	hdrs []Header
	taken
}

type taken struct {
	c      *Conn
	q      *REQ
	events []EventType
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{}
	r.Agent = NewAgent(Config{
		Clock: bubbleClock{}, Rand: rand.New(rand.NewPCG(3, 3)).Uint64, Slot: 9,
		Send: func(p Path, mad []byte, attempt int) error {
			h, m, err := Decode(mad)
			require.NoError(t, err)
			r.sent, r.hdrs = append(r.sent, m), append(r.hdrs, h)
			return nil
		},
		Request: func(c *Conn, q *REQ) Verdict {
			r.c, r.q = c, q
			c.SetHandler(func(e Event) { r.events = append(r.events, e.Type) })
			return Taken
		},
	})
	return r
}

func (r *recorder) last() Message { return r.sent[len(r.sent)-1] }

// feed gives a captured datagram to the agent, as if sent to it.
func (r *recorder) feed(c captured, change func(Message)) {
	h, m, _ := Decode(c.mad)
	if change != nil {
		change(m)
	}
	r.HandleMAD(Path{Local: c.dst, Remote: c.src}, Encode(h, m)[:])
}

// TestActiveAsKernel asks for what a kernel was seen to ask for: all but the
// random numbers of the REQ is the same.
func TestActiveAsKernel(t *testing.T) {
	for _, name := range []string{
		"roce-rping-v4:3", "roce-rping-v6:3", "roce-ucmatose-psib-v4:5", "roce-vt-ops-v4:1", "roce-vt-tos-v4:1", "rsockets-five:15",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := capturedMAD(t, name)
				_, m, err := Decode(c.mad)
				require.NoError(t, err)
				want := m.(*REQ)
				ip, err := ParseIPHeader(want.PrivateData[:])
				require.NoError(t, err)
				_, port, ok := SplitServiceID(want.ServiceID)
				require.True(t, ok)

				r := newRecorder(t)
				p := &ConnectParam{
					Path: Path{Local: c.src, Remote: c.dst, TrafficClass: want.Primary.TrafficClass},
					// rdma_cm's flow label: of the two ports (IBTA annex A17 leaves it open).
					FlowLabel: (uint32(ip.Source.Port())*31 + uint32(port)) & 0xfffff,
					ServiceID: want.ServiceID, SourcePort: ip.Source.Port(),
					QPN: want.LocalQPN, StartingPSN: want.StartingPSN, PathMTU: 3,
					ResponderResources: want.ResponderResources, InitiatorDepth: want.InitiatorDepth,
					FlowControl: want.EndToEndFlowControl, RetryCount: want.RetryCount, RNRRetryCount: want.RNRRetryCount,
					PrivateData: want.PrivateData[IPHeaderSize:],
				}
				_, err = r.Connect(p, func(Event) {})
				require.NoError(t, err)
				got := r.last().(*REQ)
				require.EqualValues(t, 9, got.LocalCommID>>24)
				require.EqualValues(t, 2, got.LocalCAGUID>>56&3, "locally administered, of one")
				got.LocalCommID, got.LocalCAGUID = want.LocalCommID, want.LocalCAGUID
				require.Equal(t, want, got)
			})
		})
	}
}

// TestPassiveAsKernel answers a kernel's REQ as the kernel's peer did.
func TestPassiveAsKernel(t *testing.T) {
	for _, c := range []struct{ req, rep, rtu, dreq string }{
		{"roce-rping-v4:3", "roce-rping-v4:4", "roce-rping-v4:5", "roce-rping-v4:30"},
		{"roce-rping-v6:3", "roce-rping-v6:6", "roce-rping-v6:7", "roce-rping-v6:20"},
		{"rsockets-five:15", "rsockets-five:16", "rsockets-five:17", "rsockets-five:29"},
		{"roce-vt-ops-v4:1", "roce-vt-ops-v4:2", "roce-vt-ops-v4:3", ""},
	} {
		t.Run(c.req, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRecorder(t)
				r.feed(capturedMAD(t, c.req), nil)
				require.NotNil(t, r.c)
				wh, m, err := Decode(capturedMAD(t, c.rep).mad)
				require.NoError(t, err)
				want := m.(*REP)
				require.NoError(t, r.c.Accept(&AcceptParam{
					QPN: want.LocalQPN, StartingPSN: want.StartingPSN,
					ResponderResources: want.ResponderResources, InitiatorDepth: want.InitiatorDepth,
					FlowControl: want.EndToEndFlowControl, RNRRetryCount: want.RNRRetryCount,
					PrivateData: want.PrivateData[:],
				}))
				require.Equal(t, wh, r.hdrs[0], "transaction ID of the REQ")
				got := *r.last().(*REP)
				require.Equal(t, r.c.ID(), got.LocalCommID)
				require.Equal(t, r.GUID(), got.LocalCAGUID)
				got.LocalCommID, got.LocalCAGUID = want.LocalCommID, want.LocalCAGUID
				if c.req == "roce-vt-ops-v4:1" {
					// That server granted 4 and 4 to one who asked for 3 and 2.
					require.EqualValues(t, 4, want.ResponderResources)
					require.EqualValues(t, 2, got.ResponderResources)
					require.EqualValues(t, 3, got.InitiatorDepth)
					got.ResponderResources, got.InitiatorDepth = 4, 4
				}
				require.Equal(t, *want, got)

				r.feed(capturedMAD(t, c.rtu), func(m Message) { m.(*RTU).RemoteCommID = r.c.ID() })
				require.Equal(t, []EventType{EventEstablished}, r.events)
				if c.dreq == "" {
					return
				}
				r.feed(capturedMAD(t, c.dreq), func(m Message) { m.(*DREQ).RemoteCommID = r.c.ID() })
				require.Equal(t, &DREP{LocalCommID: r.c.ID(), RemoteCommID: want.RemoteCommID}, r.last())
				require.Equal(t, []EventType{EventEstablished, EventDisconnected}, r.events)
			})
		})
	}
}

// TestKernelMRA: the kernel's wish for 65.5 s is granted.
func TestKernelMRA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		mra := capturedMAD(t, "roce-vt-slow-mra-v4:5")
		c, err := r.Connect(&ConnectParam{Path: Path{Local: mra.dst, Remote: mra.src}, QPN: 17, PathMTU: 3}, func(Event) {})
		require.NoError(t, err)
		r.feed(mra, func(m Message) { m.(*MRA).RemoteCommID = c.ID() })
		time.Sleep(65536*time.Millisecond + 4095*time.Millisecond)
		synctest.Wait()
		require.Len(t, r.sent, 1)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Len(t, r.sent, 2)
		rep := capturedMAD(t, "roce-vt-slow-mra-v4:6")
		r.feed(rep, func(m Message) { m.(*REP).RemoteCommID = c.ID() })
		require.NoError(t, c.Ready())
		require.Equal(t, &RTU{LocalCommID: c.ID(), RemoteCommID: 0x82621965}, r.last())
	})
}

// TestKernelREJ: a kernel's refusals, of nobody, of the application, of one
// who gave up.
func TestKernelREJ(t *testing.T) {
	for name, reason := range map[string]uint16{
		"roce-rej-no-listener-v4:4": 8, "roce-vt-reject-v4:2": 28, "rsockets-reject:20": 28,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRecorder(t)
			rej := capturedMAD(t, name)
			var got []Event
			c, err := r.Connect(&ConnectParam{Path: Path{Local: rej.dst, Remote: rej.src}, QPN: 17, PathMTU: 3},
				func(e Event) { got = append(got, e) })
			require.NoError(t, err)
			r.feed(rej, func(m Message) { m.(*REJ).RemoteCommID = c.ID() })
			require.Len(t, got, 2)
			require.Equal(t, EventRejected, got[0].Type)
			require.Equal(t, reason, got[0].REJ.Reason)
			require.Len(t, r.sent, 1)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		rej := capturedMAD(t, "librpma-rxe-6.1:91")
		// The REQ that this REJ is about has its sender's GUID and ID.
		p := &ConnectParam{Path: Path{Local: rej.src, Remote: rej.dst}, QPN: 17, PathMTU: 3}
		q, err := p.req(0x140989a6, 0x505400fffe070101)
		require.NoError(t, err)
		r.HandleMAD(Path{Local: rej.dst, Remote: rej.src}, Encode(NewHeader(1, q), q)[:])
		require.NotNil(t, r.c)
		r.feed(rej, nil)
		require.Equal(t, []EventType{EventRejected, EventDone}, r.events)
		require.Empty(t, r.sent)
	})
}

// TestQPAttributes: which number of the messages is for whom (seen in
// roce-rping-v4: with REQ PSN d4b49a and REP PSN de86ce the active side's first
// SEND had de86ce, the passive side's first READ d4b49a).
func TestQPAttributes(t *testing.T) {
	_, m, err := Decode(capturedMAD(t, "roce-rping-v4:3").mad)
	require.NoError(t, err)
	q := m.(*REQ)
	_, m, err = Decode(capturedMAD(t, "roce-rping-v4:4").mad)
	require.NoError(t, err)
	r := m.(*REP)

	p := &ConnectParam{
		Path: Path{TrafficClass: 0x68}, FlowLabel: 0xfd436, QPN: 0x11, StartingPSN: 0xd4b49a, PathMTU: 3,
		ResponderResources: 1, InitiatorDepth: 1, RetryCount: 9, RNRRetryCount: 2,
	}
	require.Equal(t, QPAttr{
		DestQPN: 0x11, SQPSN: 0xde86ce, RQPSN: 0xd4b49a, PathMTU: 3, ACKTimeout: 19, RetryCount: 7, RNRRetryCount: 7,
		MaxRDAtomic: 1, MaxDestRDAtomic: 1, FlowLabel: 0xfd436, TrafficClass: 0x68,
	}, ActiveQP(p, r))
	require.Equal(t, QPAttr{
		DestQPN: 0x11, SQPSN: 0xd4b49a, RQPSN: 0xde86ce, PathMTU: 3, ACKTimeout: 19, RetryCount: 7, RNRRetryCount: 7,
		MaxRDAtomic: 1, MaxDestRDAtomic: 1, FlowLabel: 0xfd436,
	}, PassiveQP(q, &AcceptParam{QPN: 0x11, StartingPSN: 0xde86ce, ResponderResources: 9, InitiatorDepth: 9, RNRRetryCount: 1}))

	// Depths are crosswise, and no more than what was asked for.
	q.ResponderResources, q.InitiatorDepth = 3, 2
	pa := PassiveQP(q, &AcceptParam{ResponderResources: 4, InitiatorDepth: 4})
	require.EqualValues(t, 2, pa.MaxDestRDAtomic)
	require.EqualValues(t, 3, pa.MaxRDAtomic)
	pa = PassiveQP(q, &AcceptParam{ResponderResources: 1, InitiatorDepth: 0})
	require.EqualValues(t, 1, pa.MaxDestRDAtomic)
	require.EqualValues(t, 0, pa.MaxRDAtomic)
	p.ResponderResources, p.InitiatorDepth = 3, 2
	r.ResponderResources, r.InitiatorDepth = 4, 4
	aa := ActiveQP(p, r)
	require.EqualValues(t, 2, aa.MaxRDAtomic)
	require.EqualValues(t, 3, aa.MaxDestRDAtomic)
}
