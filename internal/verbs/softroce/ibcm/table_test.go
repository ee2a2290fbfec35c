package ibcm

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// stand is one connection of an agent in a state of choice, and the peer's
// part of what led there.
type stand struct {
	a      *Agent
	c      *Conn // nil: the connection is not known
	e      end
	mu     sync.Mutex
	sent   []string
	path   Path
	id     uint32 // the agent's
	peer   uint32 // the peer's
	qpn    uint32 // the agent's
	active bool
}

const (
	peerGUID  = 0x0200000000000077
	peerQPNum = 0x33
)

var standStates = []string{
	"unknown", "REQ sent", "MRA(REQ) received", "REP received", "established, active",
	"REQ received", "REP sent", "MRA(REP) received", "established, passive", "DREQ sent", "time wait", "rejected",
}

func newStand(t *testing.T, name string) *stand {
	s := &stand{path: Path{Local: addrA, Remote: addrB}, id: 0x01123456, peer: 0x777, qpn: 0x010011}
	s.a = NewAgent(Config{
		Clock: bubbleClock{}, Rand: rand.New(rand.NewPCG(1, 1)).Uint64, Slot: 1,
		Send: func(p Path, mad []byte, attempt int) error {
			_, m, err := Decode(mad)
			require.NoError(t, err)
			require.True(t, p.same(&s.path))
			str := m.Attr().String()
			switch m := m.(type) {
			case *REJ:
				str += fmt.Sprintf("(%d)", m.Reason)
			case *MRA:
				str += fmt.Sprintf("(%d)", m.MessageMRAed)
			case *DREP:
				require.Equal(t, DREP{LocalCommID: s.id, RemoteCommID: s.peer}, *m)
			case *RTU:
				require.Equal(t, RTU{LocalCommID: s.id, RemoteCommID: s.peer}, *m)
			case *DREQ:
				require.Equal(t, DREQ{LocalCommID: s.id, RemoteCommID: s.peer, RemoteQPN: peerQPNum}, *m)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sent = append(s.sent, str)
			return nil
		},
		Request: func(c *Conn, q *REQ) Verdict {
			s.c = c
			c.SetHandler(s.e.handle)
			return Taken
		},
	})
	active := func() {
		c, err := s.a.Connect(&ConnectParam{Path: s.path, QPN: s.qpn, PathMTU: 3}, s.e.handle)
		require.NoError(t, err)
		s.c, s.id, s.active = c, c.ID(), true
	}
	passive := func() {
		s.handle(s.message("REQ"))
		s.id = s.c.ID()
	}
	switch name {
	case "unknown":
	case "REQ sent":
		active()
	case "MRA(REQ) received":
		active()
		s.handle(s.message("MRA(REQ)"))
	case "REP received":
		active()
		s.handle(s.message("REP"))
	case "established, active":
		active()
		s.handle(s.message("REP"))
		require.NoError(t, s.c.Ready())
	case "REQ received":
		passive()
	case "rejected":
		passive()
		require.NoError(t, s.c.Reject(ReasonConsumer, nil, nil))
	case "REP sent", "MRA(REP) received", "established, passive", "DREQ sent", "time wait":
		passive()
		require.NoError(t, s.c.Accept(&AcceptParam{QPN: s.qpn}))
		switch name {
		case "MRA(REP) received":
			s.handle(s.message("MRA(REP)"))
		case "established, passive":
			s.handle(s.message("RTU"))
		case "DREQ sent":
			s.handle(s.message("RTU"))
			s.c.Disconnect()
		case "time wait":
			s.handle(s.message("RTU"))
			s.handle(s.message("DREQ"))
		}
	}
	if s.c != nil {
		require.Equal(t, strings.SplitN(name, ",", 2)[0], s.c.currentState().String())
	}
	s.sent, s.e.events = nil, nil
	return s
}

func (s *stand) handle(m Message) { s.handleFrom(s.path, m) }

func (s *stand) handleFrom(p Path, m Message) {
	s.a.HandleMAD(p, Encode(NewHeader(0x5555, m), m)[:])
}

// message is one that the peer may send, with everything right.
func (s *stand) message(name string) Message {
	switch name {
	case "REQ":
		p := &ConnectParam{Path: Path{Local: addrB, Remote: addrA}, QPN: peerQPNum, PathMTU: 3}
		q, _ := p.req(s.peer, peerGUID)
		return q
	case "other REQ": // of the same queue pair
		q := s.message("REQ").(*REQ)
		q.LocalCommID = 0x888
		return q
	case "MRA(REQ)":
		return &MRA{LocalCommID: s.peer, RemoteCommID: s.id, MessageMRAed: AboutREQ, ServiceTimeout: 20}
	case "MRA(REP)":
		return &MRA{LocalCommID: s.peer, RemoteCommID: s.id, MessageMRAed: AboutREP, ServiceTimeout: 20}
	case "REJ(REQ)":
		return &REJ{RemoteCommID: s.id, MessageRejected: AboutREQ, Reason: ReasonInvalidServiceID}
	case "REJ(REP)":
		return &REJ{LocalCommID: s.peer, RemoteCommID: s.id, MessageRejected: AboutREP, Reason: ReasonConsumer}
	case "REJ(timeout)":
		m := &REJ{LocalCommID: s.peer, MessageRejected: AboutOther, Reason: ReasonTimeout, RejectedInfoLength: 8}
		binary.BigEndian.PutUint64(m.ARI[:], peerGUID)
		return m
	case "REP":
		return &REP{LocalCommID: s.peer, RemoteCommID: s.id, LocalQPN: peerQPNum, LocalCAGUID: peerGUID}
	case "RTU":
		return &RTU{LocalCommID: s.peer, RemoteCommID: s.id}
	case "DREQ":
		return &DREQ{LocalCommID: s.peer, RemoteCommID: s.id, RemoteQPN: s.qpn}
	case "DREP":
		return &DREP{LocalCommID: s.peer, RemoteCommID: s.id}
	}
	panic(name)
}

var eventNames = map[EventType]string{
	EventReplied: "replied", EventRejected: "rejected", EventUnreachable: "unreachable",
	EventEstablished: "established", EventDisconnected: "disconnected", EventDone: "done",
}

// told lists the messages sent.
func (s *stand) told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.sent, " ")
}

// outcome says what came of a message: messages sent; events; the new state.
func (s *stand) outcome() string {
	var evs []string
	for _, e := range s.e.types() {
		evs = append(evs, eventNames[e])
	}
	st := "-"
	if s.c != nil {
		st = s.c.currentState().String()
	}
	return s.told() + "; " + strings.Join(evs, " ") + "; " + st
}

// reactions is what each message does in each state. What is not listed changes nothing: no
// message, no event, no other state.
var reactions = map[string]map[string]string{
	"unknown": {
		"other REQ": "; ; REQ received",
		"REQ":       "; ; REQ received", "REP": "REJ(6); ; -", "DREQ": "DREP; ; -",
	},
	"REQ sent": {
		"other REQ": "; ; REQ received",
		// The peer may ask for a connection of its own meanwhile.
		"REQ":      "; ; REQ received",
		"MRA(REQ)": "; ; MRA(REQ) received",
		"REJ(REQ)": "; rejected done; time wait",
		"REP":      "; replied; REP received",
		"DREQ":     "DREP; ; REQ sent",
	},
	"MRA(REQ) received": {
		"other REQ": "; ; REQ received",
		"REQ":       "; ; REQ received",
		"REJ(REQ)":  "; rejected done; time wait",
		"REP":       "; replied; REP received",
		"DREQ":      "DREP; ; MRA(REQ) received",
	},
	"REP received": {
		"other REQ": "REJ(10) DREQ; disconnected; DREQ sent",
		"REQ":       "REJ(10) DREQ; disconnected; DREQ sent", // the queue pair is in a connection
		"REP":       "MRA(1); ; REP received",
		"REJ(REP)":  "; disconnected done; time wait",
		"DREQ":      "DREP; disconnected; time wait",
	},
	"established, active": {
		"other REQ": "REJ(10) DREQ; disconnected; DREQ sent",
		"REQ":       "REJ(10) DREQ; disconnected; DREQ sent",
		"REP":       "RTU; ; established",
		"REJ(REP)":  "; disconnected done; time wait",
		"DREQ":      "DREP; disconnected; time wait",
	},
	"REQ received": {
		"other REQ":    "REJ(10); rejected done; time wait",
		"REQ":          "MRA(0); ; REQ received",
		"REJ(REP)":     "; rejected done; time wait",
		"REJ(timeout)": "; rejected done; time wait",
		"REP":          "REJ(6); ; REQ received",
	},
	"REP sent": {
		"other REQ":    "REJ(10) DREQ; unreachable; DREQ sent",
		"REQ":          "REP; ; REP sent",
		"MRA(REP)":     "; ; MRA(REP) received",
		"REJ(REP)":     "; rejected done; time wait",
		"REJ(timeout)": "; rejected done; time wait",
		"REP":          "REJ(6); ; REP sent",
		"RTU":          "; established; established",
		"DREQ":         "DREP; established disconnected; time wait",
	},
	"MRA(REP) received": {
		"other REQ":    "REJ(10) DREQ; unreachable; DREQ sent",
		"REJ(REP)":     "; rejected done; time wait",
		"REJ(timeout)": "; rejected done; time wait",
		"REP":          "REJ(6); ; MRA(REP) received",
		"RTU":          "; established; established",
		"DREQ":         "DREP; established disconnected; time wait",
	},
	"established, passive": {
		"other REQ":    "REJ(10) DREQ; disconnected; DREQ sent",
		"REJ(REP)":     "; disconnected done; time wait",
		"REJ(timeout)": "; disconnected done; time wait",
		"REP":          "REJ(6); ; established",
		"DREQ":         "DREP; disconnected; time wait",
	},
	"DREQ sent": {
		"other REQ":    "; ; REQ received",
		"REJ(REP)":     "; disconnected done; time wait",
		"REJ(timeout)": "; disconnected done; time wait",
		"REP":          "REJ(6); ; DREQ sent",
		"DREQ":         "DREP; disconnected; time wait",
		"DREP":         "; disconnected done; time wait",
	},
	"time wait": {
		"other REQ": "; ; REQ received",
		"REP":       "REJ(6); ; time wait",
		"DREQ":      "DREP; ; time wait",
	},
	"rejected": {
		"other REQ": "; ; REQ received",
		"REQ":       "REJ(28); ; rejected",
		"REP":       "REJ(6); ; rejected",
	},
}

var standMessages = []string{
	"REQ", "other REQ", "MRA(REQ)", "MRA(REP)", "REJ(REQ)", "REJ(REP)", "REJ(timeout)", "REP", "RTU", "DREQ", "DREP",
}

// TestStateTable feeds each message to a connection in each state, and a
// second time each that must not matter then.
func TestStateTable(t *testing.T) {
	for _, st := range standStates {
		require.Contains(t, reactions, st)
		for _, msg := range standMessages {
			t.Run(st+"/"+msg, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newStand(t, st)
					want, ok := reactions[st][msg]
					if !ok {
						was := "-"
						if s.c != nil {
							was = s.c.currentState().String()
						}
						want = "; ; " + was
					}
					s.handle(s.message(msg))
					require.Equal(t, want, s.outcome())
				})
			})
		}
	}
}

// TestForged feeds messages with one thing wrong: none may touch the connection.
func TestForged(t *testing.T) {
	other := netip.MustParseAddr("10.7.0.66")
	wrong := map[string]func(s *stand, m Message) (Path, Message){
		"source": func(s *stand, m Message) (Path, Message) {
			return Path{Local: s.path.Local, Remote: other}, m
		},
		"destination": func(s *stand, m Message) (Path, Message) {
			return Path{Local: other, Remote: s.path.Remote}, m
		},
		"local ID":  func(s *stand, m Message) (Path, Message) { s.id++; return s.path, nil },
		"remote ID": func(s *stand, m Message) (Path, Message) { s.peer++; return s.path, nil },
		"QPN":       func(s *stand, m Message) (Path, Message) { s.qpn++; return s.path, nil },
	}
	for _, st := range standStates[1:] {
		for _, msg := range standMessages {
			for name, forge := range wrong {
				// These do not carry, or do not yet know, what is wrong in them.
				switch {
				case msg == "REQ", msg == "other REQ",
					name == "QPN" && msg != "DREQ",
					name == "remote ID" && (msg == "REJ(REQ)" || msg == "MRA(REQ)"),
					name == "remote ID" && msg == "REP" && strings.HasPrefix(reactions[st]["REP"], "; replied"),
					name == "local ID" && msg == "REJ(timeout)":
					continue
				}
				t.Run(st+"/"+msg+"/"+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := newStand(t, st)
						id, peer, qpn := s.id, s.peer, s.qpn
						was := s.c.currentState()
						sends := 0
						s.a.cfg.Send = func(p Path, mad []byte, _ int) error {
							_, m, err := Decode(mad)
							require.NoError(t, err)
							switch m.Attr() {
							case AttrDREP, AttrREJ: // to a connection unknown
							default:
								t.Errorf("%s sent", m.Attr())
							}
							sends++
							return nil
						}
						p, m := forge(s, s.message(msg))
						if m == nil {
							m = s.message(msg)
						}
						s.handleFrom(p, m)
						require.Equal(t, was, s.c.currentState())
						require.Empty(t, s.e.types())
						require.LessOrEqual(t, sends, 1)
						s.id, s.peer, s.qpn = id, peer, qpn
					})
				})
			}
		}
	}
}

// TestBadREQ: what no connection can come of is refused with its reason.
func TestBadREQ(t *testing.T) {
	for name, c := range map[string]struct {
		change func(q *REQ)
		want   string
	}{
		"unreliable":          {func(q *REQ) { q.TransportServiceType = TransportUC }, "REJ(9)"},
		"XRC":                 {func(q *REQ) { q.TransportServiceType, q.ExtendedTransportType = 3, 1 }, "REJ(9)"},
		"RDC":                 {func(q *REQ) { q.RDCExists = true }, "REJ(9)"},
		"queue pair 0":        {func(q *REQ) { q.LocalQPN = 0 }, "REJ(1)"},
		"queue pair 1":        {func(q *REQ) { q.LocalQPN = 1 }, "REJ(1)"},
		"multicast":           {func(q *REQ) { q.LocalQPN = 0xffffff }, "REJ(1)"},
		"no MTU":              {func(q *REQ) { q.PathMTU = 0 }, "REJ(26)"},
		"MTU code 6":          {func(q *REQ) { q.PathMTU = 6 }, "REJ(26)"},
		"source GID":          {func(q *REQ) { q.Primary.LocalGID[15]++ }, "REJ(12)"},
		"destination GID":     {func(q *REQ) { q.Primary.RemoteGID[15]++ }, "REJ(12)"},
		"no communication ID": {func(q *REQ) { q.LocalCommID = 0 }, "REJ(6)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStand(t, "unknown")
				q := s.message("REQ").(*REQ)
				c.change(q)
				s.handle(q)
				require.Nil(t, s.c)
				require.Equal(t, []string{c.want}, s.sent)
			})
		})
	}
}

// TestBadREP: a REP that names no queue pair is dropped; the good one after it counts.
func TestBadREP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t, "REQ sent")
		for _, change := range []func(m *REP){
			func(m *REP) { m.LocalQPN = 0 }, func(m *REP) { m.LocalQPN = 1 }, func(m *REP) { m.LocalCommID = 0 },
		} {
			m := s.message("REP").(*REP)
			change(m)
			s.handle(m)
			require.Equal(t, "; ; REQ sent", s.outcome())
		}
		s.handle(s.message("REP"))
		require.Equal(t, "; replied; REP received", s.outcome())
	})
}

// TestCloseInEachState: what the peer is told when the owner gives a
// connection up, and that everything is forgotten in a bounded time.
func TestCloseInEachState(t *testing.T) {
	want := map[string]string{
		"REQ sent": "REJ(4)", "MRA(REQ) received": "REJ(4)", "REP received": "REJ(28)",
		"established, active": "DREQ", "established, passive": "DREQ", "REP sent": "DREQ", "MRA(REP) received": "DREQ",
		"REQ received": "REJ(28)", "DREQ sent": "", "time wait": "", "rejected": "",
	}
	for _, st := range standStates[1:] {
		t.Run(st, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStand(t, st)
				s.c.Close()
				require.Equal(t, want[st], s.told())
				s.c.Close()
				s.c.Disconnect()
				require.Equal(t, want[st], s.told())
				settle()
				for range 10 {
					settle()
				}
				require.Equal(t, []EventType{EventDone}, s.e.types())
				h := host{Agent: s.a}
				h.empty(t)
			})
		})
	}
}

// FuzzAgent feeds an agent with connections in every state whatever the fuzzer
// finds. Messages without the random IDs of a connection cannot touch it.
func FuzzAgent(f *testing.F) {
	for i := range standMessages {
		s := &stand{path: Path{Local: addrA, Remote: addrB}, id: 0x01123456, peer: 0x777, qpn: 0x010011}
		m := s.message(standMessages[i])
		f.Add(Encode(NewHeader(1, m), m)[:], byte(i))
	}
	for _, c := range capturedMADs(f) {
		f.Add(c.mad, byte(4))
	}
	f.Fuzz(func(t *testing.T, mad []byte, which byte) {
		synctest.Test(t, func(t *testing.T) {
			st := standStates[int(which)%len(standStates)]
			s := newStand(t, st)
			s.a.cfg.Send = func(Path, []byte, int) error { return nil }
			// Once as it is, once with the IDs of the connection put in.
			s.a.HandleMAD(s.path, mad)
			if len(mad) == MADSize {
				binary.BigEndian.PutUint32(mad[headerSize:], s.peer)
				binary.BigEndian.PutUint32(mad[headerSize+4:], s.id)
				s.a.HandleMAD(s.path, mad)
			}
			s.a.mu.Lock()
			conns := len(s.a.conns)
			half := s.a.halfOpen
			s.a.mu.Unlock()
			require.LessOrEqual(t, conns, 3)
			require.GreaterOrEqual(t, half, 0)
			s.a.mu.Lock()
			var all []*Conn
			for _, c := range s.a.conns {
				all = append(all, c)
			}
			s.a.mu.Unlock()
			for _, c := range all {
				c.Close()
			}
			for range 20 {
				settle()
			}
			h := host{Agent: s.a}
			h.empty(t)
		})
	})
}
