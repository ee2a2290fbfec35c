//go:build linux && cgo

package rdmacore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// mcast is a group as the device knows it.
type mcast struct {
	mgid [16]byte
	lid  uint16
}

// membership is an identifier's membership of a group, from the moment that it is asked for.
type membership struct {
	token    uint64
	asked    groupAddr
	sendOnly bool
	done     chan cmEvent // what came of it, or a cmRemoval; capacity 1

	param    *verbs.UDParam // once joined; guarded by cmid.mu, as is attached
	attached bool
}

// end tells one who waits for the membership that it will not be. Later words are for nobody.
func (m *membership) end(ev cmEvent) {
	select {
	case m.done <- ev:
	default:
	}
}

// enotsupp is what the kernel says of some things that it cannot do. C libraries have no name for it.
const enotsupp = syscall.Errno(524)

// Join implements [verbs.UDCMID].
func (u *udcmid) Join(ctx context.Context, attr *verbs.JoinAttr) (*verbs.UDParam, error) {
	var p *verbs.UDParam
	g, err := u.group(attr)
	if err == nil {
		if p, err = u.join(ctx, g, attr.SendOnly); err == nil {
			return p, nil
		}
		err = u.joinFailure(g, attr.SendOnly, err)
	}
	if attr.Group.IsValid() {
		return nil, u.failure("joining group", attr.Group, err)
	}
	return nil, u.failure("joining group with MGID", attr.MGID, err)
}

// group checks which group is asked for.
func (u *udcmid) group(attr *verbs.JoinAttr) (groupAddr, error) {
	g := groupAddr{addr: attr.Group.Unmap()}
	if attr.Group.IsValid() == attr.MGID.IsValid() {
		return g, fmt.Errorf("neither or both of a group's address and its MGID: %w", syscall.EINVAL)
	}
	if attr.MGID.IsValid() {
		if !attr.MGID.Is6() {
			return g, fmt.Errorf("MGID of %d bits, not 128: %w", attr.MGID.BitLen(), syscall.EINVAL)
		}
		// On RoCE the MGID of a group is its address.
		g = groupAddr{addr: attr.MGID, raw: !u.ethernet()}
		if !g.raw {
			g.addr = attr.MGID.Unmap()
		}
	}
	if !g.addr.IsMulticast() && !g.addr.IsUnspecified() {
		return g, fmt.Errorf("%v is no multicast address, which are 224.0.0.0 to 239.255.255.255 and ff00::/8: %w", g.addr, syscall.EINVAL)
	}
	return g, nil
}

// ethernet tells whether the identifier is bound to a port of RoCE.
func (u *udcmid) ethernet() bool {
	return u.port > 0 && u.port <= len(u.dev.port) && u.dev.port[u.port-1].ethernet
}

func (u *udcmid) join(ctx context.Context, g groupAddr, sendOnly bool) (*verbs.UDParam, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, err := u.begin(g, sendOnly)
	if m == nil {
		return nil, err
	}
	if err != nil {
		return nil, u.refused(m, err)
	}
	var p *verbs.UDParam
	select {
	case ev := <-m.done:
		p, err = u.joined(m, &ev)
	case <-ctx.Done():
		err = ctx.Err()
	case <-u.gone:
		err = net.ErrClosed
	}
	if err != nil {
		u.mu.Lock()
		_ = u.leave(m) // the first error says more
		u.mu.Unlock()
		return nil, err
	}
	return p, nil
}

// begin asks for the membership. One that comes with an error was refused by the kernel.
func (u *udcmid) begin(g groupAddr, sendOnly bool) (*membership, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closed:
		return nil, net.ErrClosed
	case u.q == nil:
		return nil, wrongState("no queue pair")
	case !u.active || u.unicast():
		return nil, wrongState("the identifier leads to a peer: one that is bound to an address alone, or to a group, is needed")
	case u.h == nil:
		return nil, syscall.ENODEV
	}
	taken := make(map[uint16]bool)
	for _, m := range u.groups {
		if m.asked.addr == g.addr && m.asked.raw == g.raw && !g.addr.IsUnspecified() {
			return nil, syscall.EADDRINUSE
		}
		taken[m.asked.number] = true
	}
	for taken[g.number] {
		g.number++
		if g.number == 0 {
			return nil, fmt.Errorf("%d groups: %w", len(taken), syscall.ENOBUFS)
		}
	}
	m := &membership{token: newToken(), asked: g, sendOnly: sendOnly, done: make(chan cmEvent, 1)}
	u.groups[m.token] = m // the event may come at once
	return m, coreJoin(u.h, &m.asked, sendOnly, m.token)
}

// removalWord is how long word of a removal may take to come. The kernel refuses with EINVAL meanwhile, which may also be for another reason.
const removalWord = 200 * time.Millisecond

// refused is why the kernel refuses a membership, which is forgotten.
func (u *udcmid) refused(m *membership, err error) error {
	fresh := m.asked.addr.IsUnspecified() && u.ethernet() // no wonder
	if errors.Is(err, syscall.EINVAL) && !fresh {
		t := time.NewTimer(removalWord)
		defer t.Stop()
		select {
		case <-m.done: // nothing else can be said of it
			err = syscall.ENODEV
		case <-t.C:
		case <-u.gone:
			err = net.ErrClosed
		}
	}
	u.mu.Lock()
	delete(u.groups, m.token)
	u.mu.Unlock()
	return err
}

// joined makes the queue pair receive from the group, if it has come to that.
func (u *udcmid) joined(m *membership, ev *cmEvent) (*verbs.UDParam, error) {
	switch ev.kind {
	case cmJoined:
	case cmRemoval:
		return nil, syscall.ENODEV
	default:
		if ev.status < 0 {
			return nil, syscall.Errno(-ev.status)
		}
		return nil, syscall.EIO
	}
	p := ev.ud
	u.complete(&p.AH)
	if u.ethernet() {
		// Of a group on RoCE the kernel knows no more than the address; what else is there need not be set at all.
		p.AH.TrafficClass, p.AH.FlowLabel, p.AH.SL = u.tos, 0, 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.groups[m.token] != m {
		return nil, net.ErrClosed // the queue pair
	}
	if !m.sendOnly {
		if err := u.q.attach(mcastOf(p)); err != nil {
			return nil, err
		}
		m.attached = true
	}
	m.param = p
	answer := *p // a copy: the consumer may do with it as it likes
	return &answer, nil
}

func mcastOf(p *verbs.UDParam) mcast { return mcast{p.AH.Remote.As16(), p.AH.LID} }

// leave ends a membership, whatever has come of it. u.mu is held: nothing that the kernel waits for here
// needs it, since events are acknowledged when they are taken.
func (u *udcmid) leave(m *membership) error {
	if u.groups[m.token] != m {
		return nil
	}
	delete(u.groups, m.token)
	if m.attached {
		u.q.detach(mcastOf(m.param))
	}
	if u.h == nil {
		return nil
	}
	return coreLeave(u.h, &m.asked)
}

// Leave implements [verbs.UDCMID].
func (u *udcmid) Leave(p *verbs.UDParam) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return u.failure("leaving group", p.AH.Remote, net.ErrClosed)
	}
	for _, m := range u.groups {
		if m.param != nil && m.param.AH.Remote == p.AH.Remote {
			if err := u.leave(m); err != nil && !u.dev.gone.Load() {
				return u.failure("leaving group", p.AH.Remote, err)
			}
			return nil
		}
	}
	return u.failure("leaving group", p.AH.Remote, syscall.EADDRNOTAVAIL)
}

// leaveAll ends all memberships, with the queue pair, which has left its groups.
func (u *udcmid) leaveAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.groups {
		_ = u.leave(m)                  // nobody is left to tell
		m.end(cmEvent{kind: cmRemoval}) // it will see that it is none
	}
}

// takeGroups takes the memberships, which nobody will ask for again, from an identifier that is to be destroyed. Each must be
// left before, or librdmacm does not give up its memory. u.mu is held.
func (u *udcmid) takeGroups() []*membership {
	if u == nil {
		return nil
	}
	var ms []*membership
	for token, m := range u.groups {
		if m.attached {
			u.q.detach(mcastOf(m.param))
		}
		delete(u.groups, token)
		m.end(cmEvent{kind: cmRemoval})
		ms = append(ms, m)
	}
	return ms
}

// onGroup takes an event about a membership. The last one of a membership that was left may still come.
func (u *udcmid) onGroup(ev *cmEvent) {
	u.mu.Lock()
	m := u.groups[ev.group]
	var lost *verbs.UDParam
	if m != nil && m.param != nil {
		p := *m.param
		lost = &p
	}
	u.mu.Unlock()
	switch {
	case m == nil:
	case lost == nil:
		m.end(*ev)
	case ev.kind == cmJoinError:
		err := error(syscall.ENETRESET)
		if ev.status < 0 {
			err = syscall.Errno(-ev.status)
		}
		u.events.Post(verbs.Event{
			Type: verbs.EventMulticastError, Err: u.failure("member of group", lost.AH.Remote, err), Group: lost,
		})
	}
}

// joinFailure explains what the kernel said.
func (u *udcmid) joinFailure(g groupAddr, sendOnly bool, err error) error {
	var what string
	switch {
	case u.ethernet() && g.addr.IsUnspecified() && errors.Is(err, syscall.EINVAL):
		what = "a fresh group is what InfiniBand's subnet administrator gives, on RoCE name one"
	case errors.Is(err, enotsupp) && u.ethernet() && g.addr.Is6():
		what = "this kernel has no IPv6 groups on RoCE, use an IPv4 group"
	case sendOnly && (errors.Is(err, errors.ErrUnsupported) || errors.Is(err, enotsupp)):
		what = "the subnet manager has no send-only members"
	case errors.Is(err, enotsupp):
		what = "the device or its driver has no groups"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", what, errors.ErrUnsupported)
}

// attach makes the queue pair receive what is sent to a group. Groups under two names may be one.
func (q *qp) attach(g mcast) error {
	if err := q.dev.enter(); err != nil {
		return err
	}
	defer q.dev.leave()
	q.lock()
	defer q.unlock()
	if q.h == nil {
		return q.dev.closedError()
	}
	if q.groups[g] == 0 {
		q.dev.groupsMu.Lock()
		err := coreAttach(q.h, g)
		q.dev.groupsMu.Unlock()
		if err != nil {
			if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC) {
				return fmt.Errorf("no more groups or members (max_mcast_grp, max_mcast_qp_attach of ibv_devinfo -v): %w", err)
			}
			return err
		}
		if q.groups == nil {
			q.groups = make(map[mcast]int)
		}
	}
	q.groups[g]++
	return nil
}

// detach undoes attach.
func (q *qp) detach(g mcast) {
	q.lock()
	defer q.unlock()
	switch {
	case q.groups[g] == 0: // closed
	case q.groups[g] > 1:
		q.groups[g]--
	default:
		delete(q.groups, g)
		if q.h != nil {
			q.coreDetach(g)
		}
	}
}

func (q *qp) coreDetach(g mcast) {
	q.dev.groupsMu.Lock()
	defer q.dev.groupsMu.Unlock()
	_ = coreDetach(q.h, g) // it was there, so only a device that is gone fails
}

// detachAll lets the queue pair be destroyed. Both locks are held.
func (q *qp) detachAll() {
	for g := range q.groups {
		q.coreDetach(g)
	}
	clear(q.groups)
}
