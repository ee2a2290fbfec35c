//go:build linux && cgo

package rdmacore

/*
#include "core.h"
*/
import "C"

import (
	"net/netip"
	"slices"
	"unsafe"

	"github.com/go-rdma/rdma/internal/verbs"
)

// datagrams adds to an event what came with it if its identifier is for datagrams.
func (b *eventBuffer) datagrams(ev *cmEvent) {
	e := &b.e
	switch ev.kind {
	case cmJoined, cmJoinError, cmEstablished:
		ev.group, ev.ud = uint64(e.group), fromUD(&e.ud)
		ev.ud.PrivateData = slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&e.private_data)), e.private_len))
	}
}

func fromUD(u *C.rdmacore_ud) *verbs.UDParam {
	p := &verbs.UDParam{QPN: uint32(u.qpn), QKey: uint32(u.qkey), AH: verbs.AHAttr{
		Port: int(u.port), LID: uint16(u.lid), SL: uint8(u.sl), PathBits: uint8(u.path_bits), StaticRate: uint8(u.static_rate),
	}}
	if u.global != 0 {
		p.AH.TrafficClass, p.AH.HopLimit, p.AH.FlowLabel = uint8(u.traffic_class), uint8(u.hop_limit), uint32(u.flow_label)
		p.AH.Remote = netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&u.dgid))).Unmap()
		if gid := *(*[16]byte)(unsafe.Pointer(&u.sgid)); gid != [16]byte{} {
			p.AH.Local = netip.AddrFrom16(gid).Unmap()
		}
	}
	return p
}

func coreLookup(id *coreID, data []byte) error {
	return errnoOf(C.rdmacore_lookup(id, (*C.uint8_t)(unsafe.SliceData(data)), C.int(len(data))))
}

func coreReply(id *coreID, qpn uint32, data []byte) error {
	return errnoOf(C.rdmacore_reply(id, C.uint32_t(qpn), (*C.uint8_t)(unsafe.SliceData(data)), C.int(len(data))))
}

// groupAddr is a group as C knows it: number tells the memberships of an identifier apart.
type groupAddr struct {
	addr   netip.Addr
	raw    bool // a GID as it is
	number uint16
}

func (g *groupAddr) c() C.rdmacore_addr {
	if !g.raw {
		return toAddr(netip.AddrPortFrom(g.addr, g.number))
	}
	c := C.rdmacore_addr{family: 16, port: C.uint16_t(g.number)}
	*(*[16]byte)(unsafe.Pointer(&c.ip)) = g.addr.As16()
	return c
}

func coreJoin(id *coreID, g *groupAddr, sendOnly bool, token uint64) error {
	a := g.c()
	return errnoOf(C.rdmacore_join(id, &a, cBool(sendOnly), C.uint64_t(token)))
}

func coreLeave(id *coreID, g *groupAddr) error {
	a := g.c()
	return errnoOf(C.rdmacore_leave(id, &a))
}

func coreAttach(qp *coreQP, g mcast) error {
	return errnoOf(C.rdmacore_attach(qp, (*C.uint8_t)(&g.mgid[0]), C.int(g.lid)))
}

func coreDetach(qp *coreQP, g mcast) error {
	return errnoOf(C.rdmacore_detach(qp, (*C.uint8_t)(&g.mgid[0]), C.int(g.lid)))
}

func coreQPDatagrams(id *coreID, qp *coreQP) error { return errnoOf(C.rdmacore_qp_datagrams(id, qp)) }
