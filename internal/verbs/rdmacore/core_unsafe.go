//go:build linux && cgo

package rdmacore

/*
#cgo CFLAGS: -D_GNU_SOURCE -std=gnu11 -O2 -Wall
#cgo LDFLAGS: -ldl
#cgo noescape rdmacore_post_send
#cgo nocallback rdmacore_post_send
#cgo noescape rdmacore_post_recv
#cgo nocallback rdmacore_post_recv
#cgo noescape rdmacore_post_srq
#cgo nocallback rdmacore_post_srq
#cgo noescape rdmacore_poll
#cgo nocallback rdmacore_poll
#cgo noescape rdmacore_arm
#cgo nocallback rdmacore_arm
#cgo noescape rdmacore_cq_events
#cgo nocallback rdmacore_cq_events
#cgo noescape rdmacore_next_event
#cgo nocallback rdmacore_next_event
#cgo noescape rdmacore_async_event
#cgo nocallback rdmacore_async_event
#include "core.h"
#include <stdlib.h>
*/
import "C"

import (
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/go-rdma/rdma/internal/verbs"
)

// This file is the whole of the border: every call into C, and nothing that decides.

type (
	coreCtx  = C.rdmacore_ctx
	coreChan = C.rdmacore_chan
	corePD   = C.rdmacore_pd
	coreMR   = C.rdmacore_mr
	coreCQ   = C.rdmacore_cq
	coreSRQ  = C.rdmacore_srq
	coreAH   = C.rdmacore_ah
	coreQP   = C.rdmacore_qp
	coreEC   = C.rdmacore_ec
	coreID   = C.rdmacore_id
)

// What the two sides must agree on. An index that is not 0 does not compile.
var (
	_ = [1]int{}[unsafe.Sizeof(verbs.WC{})-C.sizeof_rdmacore_wc]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.Status)-unsafe.Offsetof(C.rdmacore_wc{}.status)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.Op)-unsafe.Offsetof(C.rdmacore_wc{}.op)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.Flags)-unsafe.Offsetof(C.rdmacore_wc{}.flags)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.ByteLen)-unsafe.Offsetof(C.rdmacore_wc{}.byte_len)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.Imm)-unsafe.Offsetof(C.rdmacore_wc{}.imm)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.QPN)-unsafe.Offsetof(C.rdmacore_wc{}.qpn)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.VendorErr)-unsafe.Offsetof(C.rdmacore_wc{}.vendor_err)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.SrcQPN)-unsafe.Offsetof(C.rdmacore_wc{}.src_qp)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.SLID)-unsafe.Offsetof(C.rdmacore_wc{}.slid)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.SL)-unsafe.Offsetof(C.rdmacore_wc{}.sl)]
	_ = [1]int{}[unsafe.Offsetof(verbs.WC{}.PathBits)-unsafe.Offsetof(C.rdmacore_wc{}.path_bits)]

	_ = [1]int{}[verbs.LocalWrite-C.CORE_LOCAL_WRITE]
	_ = [1]int{}[verbs.RemoteWrite-C.CORE_REMOTE_WRITE]
	_ = [1]int{}[verbs.RemoteRead-C.CORE_REMOTE_READ]
	_ = [1]int{}[verbs.RemoteAtomic-C.CORE_REMOTE_ATOMIC]
	_ = [1]int{}[verbs.OpSend-C.CORE_SEND]
	_ = [1]int{}[verbs.OpSendWithImm-C.CORE_SEND_IMM]
	_ = [1]int{}[verbs.OpWrite-C.CORE_WRITE]
	_ = [1]int{}[verbs.OpWriteWithImm-C.CORE_WRITE_IMM]
	_ = [1]int{}[verbs.OpRead-C.CORE_READ]
	_ = [1]int{}[verbs.OpCompareSwap-C.CORE_CMP_SWAP]
	_ = [1]int{}[verbs.OpFetchAdd-C.CORE_FETCH_ADD]
	_ = [1]int{}[verbs.Signaled-C.CORE_SIGNALED]
	_ = [1]int{}[verbs.Solicited-C.CORE_SOLICITED]
	_ = [1]int{}[verbs.Fence-C.CORE_FENCE]
	_ = [1]int{}[verbs.WCSend-C.CORE_WC_SEND]
	_ = [1]int{}[verbs.WCWrite-C.CORE_WC_WRITE]
	_ = [1]int{}[verbs.WCRead-C.CORE_WC_READ]
	_ = [1]int{}[verbs.WCCompareSwap-C.CORE_WC_CMP_SWAP]
	_ = [1]int{}[verbs.WCFetchAdd-C.CORE_WC_FETCH_ADD]
	_ = [1]int{}[verbs.WCRecv-C.CORE_WC_RECV]
	_ = [1]int{}[verbs.WCRecvWithImm-C.CORE_WC_RECV_IMM]
	_ = [1]int{}[verbs.WCWithImm-C.CORE_WC_WITH_IMM]
	_ = [1]int{}[verbs.WCWithInv-C.CORE_WC_WITH_INV]
	_ = [1]int{}[verbs.WCGRH-C.CORE_WC_GRH]
)

// Limits of one crossing.
const (
	coreBatch  = C.CORE_BATCH
	coreSGEs   = C.CORE_SGES
	coreInline = C.CORE_INLINE
	coreEvents = C.CORE_EVENTS
)

// errnoOf turns what a function of core.h returned into an error.
func errnoOf(rc C.int) error {
	if rc >= 0 {
		return nil
	}
	return syscall.Errno(-rc)
}

func made[T any](r C.rdmacore_ref) (*T, error) {
	if r.p == nil {
		return nil, errnoOf(r.err)
	}
	return (*T)(r.p), nil
}

// Why load fails.
const (
	noHeaders    = C.CORE_NO_HEADERS
	noLibibverbs = C.CORE_NO_LIBIBVERBS
	noLibrdmacm  = C.CORE_NO_LIBRDMACM
	noSymbol     = C.CORE_NO_SYMBOL
)

// coreLoad opens the libraries; why is 0 if they are there.
func coreLoad() (why int, text string) {
	var buf [512]C.char
	why = int(C.rdmacore_load(&buf[0], C.int(len(buf))))
	return why, C.GoString(&buf[0])
}

// listed is a device that has a driver in user space.
type listed struct {
	name      string
	transport verbs.LinkTransport
}

func coreList() ([]listed, error) {
	out := make([]C.rdmacore_listed, 64)
	for {
		n := C.rdmacore_list(&out[0], C.int(len(out)))
		if n < 0 {
			return nil, errnoOf(n)
		}
		if int(n) > len(out) {
			out = make([]C.rdmacore_listed, n)
			continue
		}
		devs := make([]listed, n)
		for i := range devs {
			devs[i].name = C.GoString(&out[i].name[0])
			switch out[i].transport {
			case C.CORE_TRANSPORT_IB:
				devs[i].transport = verbs.TransportIB
			case C.CORE_TRANSPORT_IWARP:
				devs[i].transport = verbs.TransportIWARP
			}
		}
		return devs, nil
	}
}

// coreOpen opens a device; fd tells of asynchronous events.
func coreOpen(name string) (ctx *coreCtx, fd int, err error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	r := C.rdmacore_open(s)
	ctx, err = made[coreCtx](r)
	return ctx, int(r.fd), err
}

func coreClose(ctx *coreCtx) error { return errnoOf(C.rdmacore_close(ctx)) }

// coreVacate closes what the kernel has of the context of a device that is gone.
func coreVacate(ctx *coreCtx) error { return errnoOf(C.rdmacore_vacate(ctx)) }

// attrs are what a device can do.
type attrs struct {
	maxQP, maxCQE, maxQPWR, maxSGE, maxSRQWR, maxSRQSGE int
	maxRDAtomic, maxInitRDAtomic                        int
	atomics, odp, native                                bool
	ports, vectors                                      int
}

func coreQuery(ctx *coreCtx) (attrs, error) {
	var a C.rdmacore_attr
	if err := errnoOf(C.rdmacore_query(ctx, &a)); err != nil {
		return attrs{}, err
	}
	return attrs{
		maxQP: int(a.max_qp), maxCQE: int(a.max_cqe), maxQPWR: int(a.max_qp_wr), maxSGE: int(a.max_sge),
		maxSRQWR: int(a.max_srq_wr), maxSRQSGE: int(a.max_srq_sge),
		maxRDAtomic: int(a.max_rd_atom), maxInitRDAtomic: int(a.max_init_rd_atom),
		atomics: a.atomics != 0, odp: a.odp != 0, native: a.native != 0, ports: int(a.ports), vectors: int(a.vectors),
	}, nil
}

// portAttrs are what a port is.
type portAttrs struct {
	state, activeMTU, gids int
	maxMsg                 int64
	ethernet               bool
}

func coreQueryPort(ctx *coreCtx, port int) (portAttrs, error) {
	var p C.rdmacore_port
	if err := errnoOf(C.rdmacore_query_port(ctx, C.int(port), &p)); err != nil {
		return portAttrs{}, err
	}
	return portAttrs{
		state: int(p.state), activeMTU: int(p.active_mtu), gids: int(p.gids), maxMsg: int64(p.max_msg), ethernet: p.ethernet != 0,
	}, nil
}

// gidEntry is a used entry of a port's GID table.
type gidEntry struct {
	gid         netip.Addr
	port, index int
	ifindex     int
	version     int // of RoCE; 0: InfiniBand, negative: unknown
}

func coreGIDs(ctx *coreCtx) ([]gidEntry, error) {
	buf := make([]C.rdmacore_gid, 1024)
	n := C.rdmacore_gids(ctx, &buf[0], C.int(len(buf)))
	if n < 0 {
		return nil, errnoOf(n)
	}
	gids := make([]gidEntry, n)
	for i := range gids {
		g := &buf[i]
		gids[i] = gidEntry{
			gid:  netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&g.gid))).Unmap(),
			port: int(g.port), index: int(g.index), ifindex: int(g.ndev), version: int(g._type),
		}
	}
	return gids, nil
}

// Kinds of asynchronous events.
const (
	asyncCQ       = C.CORE_ASYNC_CQ
	asyncQP       = C.CORE_ASYNC_QP
	asyncCommEst  = C.CORE_ASYNC_COMM_EST
	asyncSRQ      = C.CORE_ASYNC_SRQ
	asyncSRQLimit = C.CORE_ASYNC_SRQ_LIMIT
	asyncDevice   = C.CORE_ASYNC_DEVICE
	asyncPort     = C.CORE_ASYNC_PORT
	asyncNone     = C.CORE_ASYNC_NONE
)

// coreAsyncKind is the kind of an enum ibv_event_type.
func coreAsyncKind(event int) int { return int(C.rdmacore_async_kind(C.int(event))) }

func coreAsyncEvent(ctx *coreCtx) (kind int, token uint64, err error) {
	var e C.rdmacore_async
	err = errnoOf(C.rdmacore_async_event(ctx, &e))
	return int(e.kind), uint64(e.token), err
}

func coreAllocPD(ctx *coreCtx) (*corePD, error) { return made[corePD](C.rdmacore_alloc_pd(ctx)) }
func coreDeallocPD(pd *corePD) error            { return errnoOf(C.rdmacore_dealloc_pd(pd)) }

// coreRegMR registers memory that is not Go's. onDemand leaves it to be paged.
func coreRegMR(pd *corePD, mem []byte, access verbs.Access, onDemand bool) (mr *coreMR, lkey, rkey uint32, err error) {
	r := C.rdmacore_reg_mr(pd, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), C.uint32_t(access), cBool(onDemand))
	return r.mr, uint32(r.lkey), uint32(r.rkey), errnoOf(r.err)
}

func coreDeregMR(mr *coreMR) error { return errnoOf(C.rdmacore_dereg_mr(mr)) }

func coreAdviseMR(pd *corePD, a verbs.Advice, addr uint64, n int, lkey uint32) error {
	return errnoOf(C.rdmacore_advise_mr(pd, C.int(a), C.uint64_t(addr), C.uint64_t(n), C.uint32_t(lkey)))
}

func coreCreateChan(ctx *coreCtx) (ch *coreChan, fd int, err error) {
	r := C.rdmacore_create_chan(ctx)
	ch, err = made[coreChan](r)
	return ch, int(r.fd), err
}

func coreDestroyChan(ch *coreChan) error { return errnoOf(C.rdmacore_destroy_chan(ch)) }

// coreCQEvents takes notifications. drained tells that there are no more; without any that is EAGAIN.
func coreCQEvents(ch *coreChan, tokens []uint64) (n int, drained bool, err error) {
	rc := C.rdmacore_cq_events(ch, (*C.uint64_t)(unsafe.SliceData(tokens)), C.int(len(tokens)))
	if rc < 0 {
		return 0, false, errnoOf(rc)
	}
	return int(rc &^ C.CORE_DRAINED), rc&C.CORE_DRAINED != 0, nil
}

// coreCreateCQ makes a completion queue; ch may be nil.
func coreCreateCQ(ctx *coreCtx, depth int, token uint64, ch *coreChan, vector int) (*coreCQ, error) {
	return made[coreCQ](C.rdmacore_create_cq(ctx, C.int(depth), C.uint64_t(token), ch, C.int(vector)))
}

func coreDestroyCQ(cq *coreCQ) error { return errnoOf(C.rdmacore_destroy_cq(cq)) }
func coreArm(cq *coreCQ) error       { return errnoOf(C.rdmacore_arm(cq)) }

// corePoll fills wc, whose layout C knows. ud tells that queue pairs for datagrams use the queue. With nothing there it
// looks on for spin nanoseconds and then, if arm is set, arms and looks once more.
func corePoll(cq *coreCQ, wc []verbs.WC, ud bool, spin int, arm bool) (n int, armed bool, err error) {
	rc := C.rdmacore_poll(cq, (*C.rdmacore_wc)(unsafe.Pointer(unsafe.SliceData(wc))), C.int(len(wc)), cBool(ud), C.int(spin), cBool(arm))
	if rc < 0 {
		return 0, false, errnoOf(rc)
	}
	return int(rc &^ C.CORE_ARMED), rc&C.CORE_ARMED != 0, nil
}

// qpInit says what a queue pair shall be, and then what it is.
type qpInit struct {
	sendCQ, recvCQ                                *coreCQ
	srq                                           *coreSRQ
	token                                         uint64
	ud, blockLoopback, native                     bool
	sendWR, recvWR, sendSGE, recvSGE, inlineBytes int
	num                                           uint32
}

func coreCreateQP(pd *corePD, q *qpInit) (*coreQP, error) {
	// In C memory: it holds pointers, though to C's own objects.
	in := (*C.rdmacore_qp_init)(C.calloc(1, C.sizeof_rdmacore_qp_init))
	defer C.free(unsafe.Pointer(in))
	in.send_cq, in.recv_cq, in.srq, in.token = q.sendCQ, q.recvCQ, q.srq, C.uint64_t(q.token)
	in.ud, in.block_loopback = cBool(q.ud), cBool(q.blockLoopback)
	in.native = cBool(q.native)
	in.send_wr, in.recv_wr = C.int32_t(q.sendWR), C.int32_t(q.recvWR)
	in.send_sge, in.recv_sge, in.inline_len = C.int32_t(q.sendSGE), C.int32_t(q.recvSGE), C.int32_t(q.inlineBytes)
	qp := C.rdmacore_create_qp(pd, in)
	if qp == nil {
		return nil, errnoOf(in.err)
	}
	q.sendWR, q.recvWR, q.sendSGE, q.recvSGE = int(in.send_wr), int(in.recv_wr), int(in.send_sge), int(in.recv_sge)
	q.inlineBytes, q.num = int(in.inline_len), uint32(in.qpn)
	return qp, nil
}

func cBool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

func coreDestroyQP(qp *coreQP) error { return errnoOf(C.rdmacore_destroy_qp(qp)) }
func coreQPError(qp *coreQP) error   { return errnoOf(C.rdmacore_qp_error(qp)) }

// batch is what one crossing takes: requests without Go pointers.
type batch struct {
	send [coreBatch]C.rdmacore_send
	recv [coreBatch]C.rdmacore_recv
	sge  [coreSGEs]C.rdmacore_sge
	data [coreInline]byte
	err  C.int32_t
}

// addSGL appends entries from the k-th on and returns where the next ones go.
func (b *batch) addSGL(k int, sgl []verbs.SGE) int {
	for i := range sgl {
		s := &sgl[i]
		b.sge[k] = C.rdmacore_sge{addr: C.uint64_t(s.Addr), length: C.uint32_t(s.Length), lkey: C.uint32_t(s.LKey)}
		k++
	}
	return k
}

// addSend puts wr into place n, under an ID of ours; ah is that of a datagram.
func (b *batch) addSend(n int, id uint64, wr *verbs.SendWR, ah *coreAH) {
	s := &b.send[n]
	s.id, s.remote_addr, s.rkey, s.imm = C.uint64_t(id), C.uint64_t(wr.RemoteAddr), C.uint32_t(wr.RKey), C.uint32_t(wr.Imm)
	if wr.Op == verbs.OpSendWithInv {
		s.imm = C.uint32_t(wr.InvalidateKey)
	}
	s.compare, s.swap_add = C.uint64_t(wr.Compare), C.uint64_t(wr.SwapAdd)
	s.ah, s.remote_qpn, s.remote_qkey = C.uint64_t(uintptr(unsafe.Pointer(ah))), C.uint32_t(wr.RemoteQPN), C.uint32_t(wr.RemoteQKey)
	s.op, s.flags = C.uint8_t(wr.Op), C.uint8_t(wr.Flags)
	s.inline_len, s.inlined, s.nsge = C.uint32_t(len(wr.Inline)), 0, 0
	switch {
	case wr.Op == verbs.OpFlush:
		s.flush_length, s.flush_level = C.uint32_t(wr.FlushLength), C.uint8_t(wr.FlushLevel)
		s.flush_type = C.uint8_t(wr.FlushType / verbs.FlushGlobal) // 1 and 2
	case wr.Op == verbs.OpAtomicWrite:
		s.inline_len = atomicLen
	case wr.Inline != nil:
		s.inlined = 1
	default:
		s.nsge = C.uint8_t(len(wr.SGL))
	}
}

func (b *batch) addRecv(n int, id uint64, wr *verbs.RecvWR) {
	b.recv[n] = C.rdmacore_recv{id: C.uint64_t(id), nsge: C.uint32_t(len(wr.SGL))}
}

// postSend posts the first n requests. It returns how many were taken, and why the next one was not.
func (b *batch) postSend(qp *coreQP, n int) (int, error) {
	done := C.rdmacore_post_send(qp, &b.send[0], C.int(n), &b.sge[0], (*C.uint8_t)(&b.data[0]), &b.err)
	return int(done), errnoOf(-b.err)
}

func (b *batch) postRecv(qp *coreQP, n int) (int, error) {
	done := C.rdmacore_post_recv(qp, &b.recv[0], C.int(n), &b.sge[0], &b.err)
	return int(done), errnoOf(-b.err)
}

func (b *batch) postSRQ(srq *coreSRQ, n int) (int, error) {
	done := C.rdmacore_post_srq(srq, &b.recv[0], C.int(n), &b.sge[0], &b.err)
	return int(done), errnoOf(-b.err)
}

func coreCreateSRQ(pd *corePD, wr, sge int, token uint64) (*coreSRQ, error) {
	return made[coreSRQ](C.rdmacore_create_srq(pd, C.int(wr), C.int(sge), C.uint64_t(token)))
}

func coreArmSRQ(srq *coreSRQ, limit int) error { return errnoOf(C.rdmacore_arm_srq(srq, C.int(limit))) }
func coreDestroySRQ(srq *coreSRQ) error        { return errnoOf(C.rdmacore_destroy_srq(srq)) }

// coreCreateAH makes an address handle; sgid is the index of the own address in the port's table.
func coreCreateAH(pd *corePD, a *verbs.AHAttr, port, sgid int, global bool) (*coreAH, error) {
	in := C.rdmacore_ah_attr{
		sgid_index: C.int32_t(sgid), port: C.int32_t(port), flow_label: C.uint32_t(a.FlowLabel), lid: C.uint16_t(a.LID),
		traffic_class: C.uint8_t(a.TrafficClass), hop_limit: C.uint8_t(a.HopLimit),
		sl: C.uint8_t(a.SL), path_bits: C.uint8_t(a.PathBits), static_rate: C.uint8_t(a.StaticRate),
	}
	if global {
		in.global = 1
		*(*[16]byte)(unsafe.Pointer(&in.dgid)) = a.Remote.As16()
	}
	return made[coreAH](C.rdmacore_create_ah(pd, &in))
}

func coreDestroyAH(ah *coreAH) error { return errnoOf(C.rdmacore_destroy_ah(ah)) }
