package dgram

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// epKey is what an endpoint is for.
type epKey struct {
	dev   verbs.Device // as identifiers have it
	space verbs.PortSpace
	local netip.Addr // that its identifier is bound to; none: any of the device's
}

// endpoint is a queue pair with its memory.
type endpoint struct {
	s   *Socket
	key epKey
	dev *rc.Device
	id  verbs.UDCMID
	qp  verbs.QP
	num uint32
	mtu int

	born int64

	rx receiver // guarded by Socket.rmu
	tx sender   // guarded by Socket.wmu

	failed atomic.Pointer[failure] // once it is of no use
	drops  atomic.Uint64           // of the queue pair, when it was closed
}

// failure is why an endpoint is of no use.
type failure struct{ err error }

const (
	minDepth     = 16
	maxDepth     = 16 << 10 // what devices have at least
	spareRecv    = 2048     // receives that a queue pair has room for, so that SetReadBuffer can ask for more
	maxRecv      = 8192     // and at most
	sendDepth    = 256
	defaultBytes = 1 << 20
)

// newEndpoint makes an endpoint on the device of that name.
func (s *Socket) newEndpoint(ctx context.Context, key epKey, device string) (*endpoint, error) {
	e := &endpoint{s: s, key: key, born: now()}
	attr := verbs.CMIDAttr{PortSpace: key.space, TrafficClass: s.cfg.TrafficClass, Handler: e.event}
	if key.local.IsValid() {
		attr.Local = netip.AddrPortFrom(key.local, 0)
	}
	id, err := s.cfg.Resolve(ctx, device, attr)
	if err != nil {
		return nil, err
	}
	var ok bool
	if e.id, ok = id.(verbs.UDCMID); !ok {
		_ = id.Close() // the first error says more
		return nil, fmt.Errorf("device %s has no datagrams: %w", device, syscall.EPROTONOSUPPORT)
	}
	if err := e.make(); err != nil {
		_ = e.close() // the first error says more
		return nil, err
	}
	return e, nil
}

// make makes all that an endpoint has but its identifier.
func (e *endpoint) make() (err error) {
	if e.dev, err = rc.OpenDevice(e.id); err != nil {
		return err
	}
	limit := maxDepth
	if info := e.id.Device().Info(); info.MaxQPWR > 0 {
		limit = min(limit, info.MaxQPWR)
	}
	room := min(max(spareRecv, min(int(e.s.readBytes.Load())/1024, maxRecv)), limit) // not knowing the MTU yet
	sends := min(sendDepth, limit)
	if e.rx.cq, err = e.id.Device().CreateCQ(&verbs.CQAttr{Depth: room, Notify: e.received}); err != nil {
		return fmt.Errorf("completion queue of receives: %w", err)
	}
	e.rx.one, _ = e.rx.cq.(verbs.ArmPoller)
	if e.tx.cq, err = e.id.Device().CreateCQ(&verbs.CQAttr{Depth: sends, Notify: e.s.wr.Wake}); err != nil {
		return fmt.Errorf("completion queue of sends: %w", err)
	}
	e.qp, err = e.id.CreateQP(e.dev.PD(), &verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: e.tx.cq, RecvCQ: e.rx.cq,
		MaxSendWR: sends, MaxRecvWR: room, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64,
	})
	if err != nil {
		return fmt.Errorf("queue pair: %w", err)
	}
	limits := e.qp.Cap()
	e.num, e.mtu = e.qp.Num(), int(limits.PathMTU)
	if err := e.tx.init(e, sends, limits.MaxInline); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	e.rx.room = room
	if err := e.rx.extend(e, e.depth()); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// depth is how many receives shall be posted.
func (e *endpoint) depth() int {
	return max(min(int(e.s.readBytes.Load())/e.mtu, e.rx.room), minDepth)
}

// received is the receive queue's call, once for each time that it was armed.
func (e *endpoint) received() {
	e.rx.armed.Store(false)
	e.s.rd.Wake()
}

// dropped counts datagrams that met no receive.
func (e *endpoint) dropped() uint64 {
	if n := e.drops.Load(); n > 0 {
		return n
	}
	return e.qp.Stats().Dropped
}

// stop ends all that the device does for the endpoint. Its memory stays.
func (e *endpoint) stop() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if e.qp != nil {
		e.drops.Store(e.qp.Stats().Dropped)
		keep(e.qp.Close())
	}
	if e.rx.cq != nil {
		keep(e.rx.cq.Close())
	}
	if e.tx.cq != nil {
		keep(e.tx.cq.Close())
	}
	if e.id != nil {
		keep(e.id.Close())
	}
	return first
}

// free gives back what is left once the endpoint was stopped. Nobody reads or writes any more.
func (e *endpoint) free() error {
	err := e.rx.free(e)
	if e2 := e.tx.free(e); err == nil {
		err = e2
	}
	if e.dev != nil {
		if e2 := e.dev.Release(); err == nil {
			err = e2
		}
	}
	return err
}

// close is both.
func (e *endpoint) close() error {
	err := e.stop()
	if e2 := e.free(); err == nil {
		err = e2
	}
	return err
}
