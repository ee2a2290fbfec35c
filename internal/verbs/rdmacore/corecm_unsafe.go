//go:build linux && cgo

package rdmacore

/*
#include "core.h"
*/
import "C"

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"unsafe"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Kinds of events of the connection manager.
const (
	cmAddrResolved  = C.CORE_CM_ADDR_RESOLVED
	cmAddrError     = C.CORE_CM_ADDR_ERROR
	cmRouteResolved = C.CORE_CM_ROUTE_RESOLVED
	cmRouteError    = C.CORE_CM_ROUTE_ERROR
	cmRequest       = C.CORE_CM_REQUEST
	cmResponse      = C.CORE_CM_RESPONSE
	cmConnectError  = C.CORE_CM_CONNECT_ERROR
	cmUnreachable   = C.CORE_CM_UNREACHABLE
	cmRejected      = C.CORE_CM_REJECTED
	cmEstablished   = C.CORE_CM_ESTABLISHED
	cmDisconnected  = C.CORE_CM_DISCONNECTED
	cmRemoval       = C.CORE_CM_REMOVAL
	cmAddrChange    = C.CORE_CM_ADDR_CHANGE
	cmJoined        = C.CORE_CM_JOINED
	cmJoinError     = C.CORE_CM_JOIN_ERROR
)

// cmEvent is an event, acknowledged already.
type cmEvent struct {
	token   uint64
	request *coreID
	kind    int
	status  int // an errno negated, or a reason
	param   verbs.ConnParam
	ud      *verbs.UDParam // of identifiers for datagrams: of a service or a group
	group   uint64         // token of a membership
}

func coreCreateEC() (ec *coreEC, fd int, err error) {
	r := C.rdmacore_create_ec()
	ec, err = made[coreEC](r)
	return ec, int(r.fd), err
}

func coreDestroyEC(ec *coreEC) { C.rdmacore_destroy_ec(ec) }

// coreForget lets librdmacm forget devices that are gone.
func coreForget() { C.rdmacore_forget() }

// eventBuffer is where C puts an event.
type eventBuffer struct{ e C.rdmacore_event }

// toID is the identifier at an address, which C gave as a number so that the buffer holds no pointer.
func toID(n C.uint64_t) *coreID { return *(**coreID)(unsafe.Pointer(&n)) }

func (b *eventBuffer) next(ec *coreEC) (cmEvent, error) {
	e := &b.e
	if err := errnoOf(C.rdmacore_next_event(ec, e)); err != nil {
		return cmEvent{}, err
	}
	ev := cmEvent{token: uint64(e.token), request: toID(e.request), kind: int(e.kind), status: int(e.status)}
	switch ev.kind {
	case cmRequest, cmResponse, cmEstablished, cmRejected, cmUnreachable:
		ev.param = verbs.ConnParam{
			PrivateData:        slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(&e.private_data)), e.private_len)),
			ResponderResources: uint8(e.responder_resources), InitiatorDepth: uint8(e.initiator_depth),
			FlowControl: e.flow_control != 0, RetryCount: uint8(e.retry_count), RNRRetryCount: uint8(e.rnr_retry_count),
		}
	}
	b.datagrams(&ev)
	return ev, nil
}

func coreCreateID(ec *coreEC, ps verbs.PortSpace, token uint64) (*coreID, error) {
	return made[coreID](C.rdmacore_create_id(ec, C.int(ps), C.uint64_t(token)))
}

func coreDestroyID(id *coreID) error { return errnoOf(C.rdmacore_destroy_id(id)) }

func coreMoveID(id *coreID, ec *coreEC, token uint64) error {
	return errnoOf(C.rdmacore_move_id(id, ec, C.uint64_t(token)))
}

func coreSetTOS(id *coreID, tos uint8) error { return errnoOf(C.rdmacore_set_tos(id, C.int(tos))) }

func coreSetAFOnly(id *coreID, on bool) error {
	return errnoOf(C.rdmacore_set_afonly(id, cBool(on)))
}

// toAddr turns an address into C's; the zero one is none.
func toAddr(a netip.AddrPort) (c C.rdmacore_addr) {
	ip := a.Addr()
	c.port = C.uint16_t(a.Port())
	switch {
	case ip.Is4():
		c.family = 4
		*(*[4]byte)(unsafe.Pointer(&c.ip)) = ip.As4()
	case ip.Is6():
		c.family = 6
		*(*[16]byte)(unsafe.Pointer(&c.ip)) = ip.As16()
		if zone := ip.Zone(); zone != "" {
			if n, err := zoneIndex(zone); err == nil { // else the kernel refuses the address
				c.scope = C.uint32_t(n)
			}
		}
	}
	return c
}

func fromAddr(c *C.rdmacore_addr) netip.AddrPort {
	var ip netip.Addr
	switch c.family {
	case 4:
		ip = netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&c.ip)))
	case 6:
		ip = netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&c.ip)))
		if ip.IsLinkLocalUnicast() && c.scope != 0 {
			zone := strconv.FormatUint(uint64(c.scope), 10)
			if ifi, err := net.InterfaceByIndex(int(c.scope)); err == nil {
				zone = ifi.Name
			}
			ip = ip.WithZone(zone)
		}
	}
	return netip.AddrPortFrom(ip, uint16(c.port))
}

func coreBind(id *coreID, local netip.AddrPort) error {
	a := toAddr(local)
	return errnoOf(C.rdmacore_bind(id, &a))
}

func coreResolveAddr(id *coreID, local, remote netip.AddrPort, ms int) error {
	l, r := toAddr(local), toAddr(remote)
	return errnoOf(C.rdmacore_resolve_addr(id, &l, &r, C.int(ms)))
}

func coreResolveRoute(id *coreID, ms int) error {
	return errnoOf(C.rdmacore_resolve_route(id, C.int(ms)))
}
func coreListen(id *coreID, backlog int) error { return errnoOf(C.rdmacore_listen(id, C.int(backlog))) }

// coreInfo tells what an identifier is bound to; device is empty if to none.
func coreInfo(id *coreID) (device string, port int, local, remote netip.AddrPort) {
	var i C.rdmacore_id_info
	C.rdmacore_info(id, &i)
	return C.GoString(&i.device[0]), int(i.port), fromAddr(&i.local), fromAddr(&i.remote)
}

// coreContext returns librdmacm's own context of the device that an identifier is bound to, or nil.
func coreContext(id *coreID) *coreCtx { return C.rdmacore_context(id) }

func toParam(p *verbs.ConnParam, q *qp) (c C.rdmacore_param) {
	c.responder_resources, c.initiator_depth = C.uint8_t(p.ResponderResources), C.uint8_t(p.InitiatorDepth)
	c.flow_control = C.uint8_t(cBool(p.FlowControl))
	c.retry_count, c.rnr_retry_count, c.qpn = C.uint8_t(p.RetryCount), C.uint8_t(p.RNRRetryCount), C.uint32_t(q.num)
	c.srq = C.uint8_t(cBool(q.srq != nil))
	c.private_len = C.int32_t(copy((*[C.CORE_PRIVATE]byte)(unsafe.Pointer(&c.private_data))[:], p.PrivateData))
	return c
}

func coreConnect(id *coreID, p *verbs.ConnParam, q *qp) error {
	c := toParam(p, q)
	return errnoOf(C.rdmacore_connect(id, &c))
}

func coreAccept(id *coreID, p *verbs.ConnParam, q *qp) error {
	c := toParam(p, q)
	return errnoOf(C.rdmacore_accept(id, &c))
}

func coreEstablish(id *coreID) error { return errnoOf(C.rdmacore_establish(id)) }

func coreReject(id *coreID, data []byte) error {
	return errnoOf(C.rdmacore_reject(id, (*C.uint8_t)(unsafe.SliceData(data)), C.int(len(data))))
}

func coreDisconnect(id *coreID) error { return errnoOf(C.rdmacore_disconnect(id)) }
func coreCommEst(id *coreID) error    { return errnoOf(C.rdmacore_comm_est(id)) }

func coreQPInit(id *coreID, qp *coreQP, atomics bool) error {
	return errnoOf(C.rdmacore_qp_init_state(id, qp, cBool(atomics)))
}

func coreQPInitAlone(qp *coreQP, port int, atomics bool) error {
	return errnoOf(C.rdmacore_qp_init_alone(qp, C.int(port), cBool(atomics)))
}

// coreQPConnect takes a queue pair to RTS. Negative depths and a class of 0 leave what the messages say. It returns
// the path MTU and the depth for READs and atomics.
func coreQPConnect(id *coreID, qp *coreQP, rnrTimer, class uint8, maxRDAtomic, maxDestRDAtomic int) (mtu verbs.MTU, depth int, err error) {
	a := C.rdmacore_connect_attr{
		min_rnr_timer: C.int32_t(rnrTimer), traffic_class: C.int32_t(class), max_rd_atomic: C.int32_t(maxRDAtomic), max_dest_rd_atomic: C.int32_t(maxDestRDAtomic),
	}
	err = errnoOf(C.rdmacore_qp_connect(id, qp, &a))
	return verbs.MTUFromCode(uint8(a.path_mtu)), int(a.max_rd_atomic), err
}
