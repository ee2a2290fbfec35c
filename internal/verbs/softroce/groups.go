package softroce

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// groupKey is a multicast group on an interface.
type groupKey struct {
	addr  netip.Addr // without zone
	index int
}

// groupTable knows the queue pairs that are members of groups.
type groupTable struct {
	view atomic.Pointer[map[groupKey][]*qp] // for receivers: never changed, but replaced

	mu     sync.Mutex
	leave  map[groupKey]func() // ends the process's membership
	counts map[*qp]int
}

// members returns who gets a packet.
func (t *groupTable) members(k groupKey) []*qp {
	if v := t.view.Load(); v != nil {
		return (*v)[k]
	}
	return nil
}

// set replaces the members of a group. t.mu is held.
func (t *groupTable) set(k groupKey, qs []*qp) {
	next := make(map[groupKey][]*qp)
	if v := t.view.Load(); v != nil {
		for o, m := range *v {
			next[o] = m
		}
	}
	if len(qs) == 0 {
		delete(next, k)
	} else {
		next[k] = qs
	}
	t.view.Store(&next)
}

// join makes q a member.
func (t *groupTable) join(conn netio.Conn, k groupKey, q *qp) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.members(k)
	if slices.Contains(old, q) {
		return fmt.Errorf("the queue pair is a member: %w", syscall.EADDRINUSE)
	}
	// Those who receive must see the queue pair closed before it is taken out.
	q.mu.Lock()
	dead := q.state >= stateClosed
	q.mu.Unlock()
	if dead {
		return errClosedQP
	}
	if len(old) == 0 {
		leave, err := conn.JoinGroup(k.addr, k.index)
		if err != nil {
			return err
		}
		if t.leave == nil {
			t.leave, t.counts = make(map[groupKey]func()), make(map[*qp]int)
		}
		t.leave[k] = leave
	}
	t.set(k, append(slices.Clip(old), q))
	t.counts[q]++
	return nil
}

// drop ends a membership, and tells whether there was one.
func (t *groupTable) drop(k groupKey, q *qp) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropLocked(k, q)
}

func (t *groupTable) dropLocked(k groupKey, q *qp) bool {
	old := t.members(k)
	i := slices.Index(old, q)
	if i < 0 {
		return false
	}
	t.set(k, slices.Delete(slices.Clone(old), i, i+1))
	if t.counts[q]--; t.counts[q] == 0 {
		delete(t.counts, q)
	}
	if len(old) == 1 {
		t.leave[k]()
		delete(t.leave, k)
	}
	return true
}

// leaveAll ends all memberships of a queue pair that is closed.
func (t *groupTable) leaveAll(q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts[q] == 0 {
		return
	}
	for k := range *t.view.Load() {
		t.dropLocked(k, q)
	}
}

// handleGroup gives packets to groups to the members.
func (d *device) handleGroup(w *work, ps []netio.Packet) {
	for i := 0; i < len(ps); {
		k := groupKey{ps[i].Local.WithZone(""), ps[i].Interface}
		j := i + 1
		for j < len(ps) && ps[j].Local == ps[i].Local && ps[j].Interface == ps[i].Interface {
			j++
		}
		members := d.groups.members(k)
		if len(members) == 0 {
			d.stats.unknownQP.Add(uint64(j - i))
		}
		for _, q := range members {
			q.receive(w, ps[i:j])
		}
		i = j
	}
}
