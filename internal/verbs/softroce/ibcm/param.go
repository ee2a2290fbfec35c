package ibcm

import (
	"fmt"
	"net/netip"
	"time"
)

// Values that rdma_cm puts into the messages of a RoCE port.
const (
	responseTimeout = 20 // CM response timeout code: 4096 ms
	maxCMRetries    = 15
	pkeyDefault     = 0xffff
	lidNone         = 0xffff // of a path that is routed

	// ACKDelay is the code of the time this side takes to acknowledge, as
	// rdma_rxe states it.
	ACKDelay = 15
	// PacketLifetime is the code of the time a packet may be under way, as
	// rdma_cm assumes it on RoCE.
	PacketLifetime = 18
)

// Path is where the datagrams of a connection go.
type Path struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	HopLimit      uint8 // 0: 64
}

// same tells whether a datagram that came by way of o is between p's ends.
func (p *Path) same(o *Path) bool {
	return p.Local.WithZone("") == o.Local.WithZone("") && p.Remote.WithZone("") == o.Remote.WithZone("")
}

// ConnectParam is what an active side asks for.
type ConnectParam struct {
	Path       Path
	FlowLabel  uint32 // 20 bits
	ServiceID  uint64
	SourcePort uint16 // of rdma_cm, for its header
	QPN        uint32
	// StartingPSN is the PSN of the first request that the peer will send.
	StartingPSN        uint32
	PathMTU            uint8 // code
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	SRQ                bool
	RetryCount         uint8
	RNRRetryCount      uint8  // of the peer's requests
	PrivateData        []byte // at most 56 bytes

	// Timeout bounds the time without an answer; 0: Config.ConnectTimeout.
	Timeout time.Duration

	// Far says that the peer is another host, so its kernel may be what answers. Linux forgets a connection as it
	// ends, and takes a copy of the REQ that comes to its turn afterwards for a new request. So the REQ is repeated as
	// late as a SYN (RFC 6298 2.1), and on several ways only from the third time on.
	Far bool
}

func (p *ConnectParam) localACKTimeout() uint8 { return ACKTimeout(ACKDelay, PacketLifetime) }

func hopLimit(h uint8) uint8 {
	if h == 0 {
		return 64
	}
	return h
}

// req is the REQ that p asks for, in the way of rdma_cm.
func (p *ConnectParam) req(id uint32, guid uint64) (*REQ, error) {
	q := &REQ{
		LocalCommID: id, ServiceID: p.ServiceID, LocalCAGUID: guid,
		LocalQPN:           p.QPN,
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RemoteCMResponseTimeout: responseTimeout, LocalCMResponseTimeout: responseTimeout, MaxCMRetries: maxCMRetries,
		TransportServiceType: TransportRC, EndToEndFlowControl: p.FlowControl,
		StartingPSN: p.StartingPSN, PKey: pkeyDefault, PathMTU: p.PathMTU,
		RetryCount: min(p.RetryCount, 7), RNRRetryCount: min(p.RNRRetryCount, 7), SRQ: p.SRQ,
		Primary: PathRecord{
			LocalGID: GID(p.Path.Local), RemoteGID: GID(p.Path.Remote),
			FlowLabel: p.FlowLabel, TrafficClass: p.Path.TrafficClass, HopLimit: hopLimit(p.Path.HopLimit),
			LocalACKTimeout: p.localACKTimeout(),
		},
	}
	if q.Primary.HopLimit > 1 {
		q.Primary.LocalLID, q.Primary.RemoteLID = lidNone, lidNone
	} else {
		q.Primary.SubnetLocal = true
	}
	h := IPHeader{Source: netip.AddrPortFrom(p.Path.Local, p.SourcePort), Destination: p.Path.Remote}
	h.Put(q.PrivateData[:])
	if len(p.PrivateData) > len(q.PrivateData)-IPHeaderSize {
		return nil, fmt.Errorf("ibcm: %d bytes of private data in a REQ", len(p.PrivateData))
	}
	copy(q.PrivateData[IPHeaderSize:], p.PrivateData)
	return q, nil
}

// AcceptParam is what a passive side grants. The depths are cut to what the
// REQ offers.
type AcceptParam struct {
	QPN                uint32
	StartingPSN        uint32 // of the first request that the peer will send
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	SRQ                bool
	RNRRetryCount      uint8  // of the peer's requests
	PrivateData        []byte // at most 196 bytes
}

// depths are the limits of the passive side: READs it takes and has outstanding.
func (p *AcceptParam) depths(q *REQ) (responder, initiator uint8) {
	return min(p.ResponderResources, q.InitiatorDepth), min(p.InitiatorDepth, q.ResponderResources)
}

func (p *AcceptParam) rep(q *REQ, id uint32, guid uint64) (*REP, error) {
	r := &REP{
		LocalCommID: id, RemoteCommID: q.LocalCommID, LocalQPN: p.QPN, StartingPSN: p.StartingPSN,
		TargetACKDelay: ACKDelay, EndToEndFlowControl: p.FlowControl,
		RNRRetryCount: min(p.RNRRetryCount, 7), SRQ: p.SRQ, LocalCAGUID: guid,
	}
	r.ResponderResources, r.InitiatorDepth = p.depths(q)
	if len(p.PrivateData) > len(r.PrivateData) {
		return nil, fmt.Errorf("ibcm: %d bytes of private data in a REP", len(p.PrivateData))
	}
	copy(r.PrivateData[:], p.PrivateData)
	return r, nil
}

// QPAttr is what the messages of a connection say about this side's queue pair.
type QPAttr struct {
	DestQPN         uint32
	SQPSN           uint32 // of this side's first request
	RQPSN           uint32 // of the peer's
	PathMTU         uint8  // code
	ACKTimeout      uint8  // code
	RetryCount      uint8
	RNRRetryCount   uint8
	MaxRDAtomic     uint8 // this side's outstanding READs and atomics
	MaxDestRDAtomic uint8 // the peer's
	FlowLabel       uint32
	TrafficClass    uint8
}

// ActiveQP gives the attributes of the active side's queue pair. A starting PSN
// and an RNR retry count are for whom they are sent to. A REP that grants more
// than was asked for is cut to it.
func ActiveQP(p *ConnectParam, r *REP) QPAttr {
	return QPAttr{
		DestQPN: r.LocalQPN, SQPSN: r.StartingPSN, RQPSN: p.StartingPSN & (1<<24 - 1),
		PathMTU: p.PathMTU, ACKTimeout: ACKTimeout(r.TargetACKDelay, p.localACKTimeout()-1),
		RetryCount: min(p.RetryCount, 7), RNRRetryCount: r.RNRRetryCount,
		MaxRDAtomic:     min(r.ResponderResources, p.InitiatorDepth),
		MaxDestRDAtomic: min(r.InitiatorDepth, p.ResponderResources),
		FlowLabel:       p.FlowLabel, TrafficClass: p.Path.TrafficClass,
	}
}

// PassiveQP gives the attributes of the passive side's queue pair.
func PassiveQP(q *REQ, p *AcceptParam) QPAttr {
	a := QPAttr{
		DestQPN: q.LocalQPN, SQPSN: q.StartingPSN, RQPSN: p.StartingPSN & (1<<24 - 1),
		PathMTU: q.PathMTU, ACKTimeout: q.Primary.LocalACKTimeout,
		RetryCount: q.RetryCount, RNRRetryCount: q.RNRRetryCount,
		FlowLabel: q.Primary.FlowLabel, TrafficClass: q.Primary.TrafficClass,
	}
	a.MaxDestRDAtomic, a.MaxRDAtomic = p.depths(q)
	return a
}
