//go:build linux

package shm

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// trusted tells whether a user's processes are peers without anybody's leave. Each side looks for itself.
func trusted(uid uint32) bool { return verbs.SameUser(uid) }

// credOf is who is at the other end of a socket.
func credOf(fd int) (verbs.Cred, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return verbs.Cred{}, os.NewSyscallError("getsockopt", err)
	}
	return verbs.Cred{PID: int(c.Pid), UID: int(c.Uid), GID: int(c.Gid)}, nil
}

// foreignError says that a port is another user's.
type foreignError struct {
	port uint16
	uid  int
}

func (e *foreignError) Error() string {
	if verbs.Nobody(uint32(e.uid)) {
		return fmt.Sprintf("port %d is held by a process whose user has no number in this user namespace: have the namespace map him (uid_map, subuid(5)), or ask for shared memory with other users (by name here, by Admit there)",
			e.port)
	}
	return fmt.Sprintf("port %d is held by a process of uid %d, and this is uid %d: shared memory with other users has to be asked for (by name here, by Admit there)",
		e.port, e.uid, os.Geteuid())
}

// strangerError says that nobody knows whose a port is.
type strangerError struct{ port uint16 }

func (e strangerError) Error() string {
	return fmt.Sprintf("port %d is held by a process that takes no connections: ss -xlp names it", e.port)
}

// Links with processes of one other user, and of all: a user may have many numbers (subuid(5)). Those of this user could use up what
// there is anyhow.
const (
	maxForeign    = 64
	maxForeigners = 512
)

// foreigners counts links by user.
type foreigners struct{ byUser }

// add counts one more, if there may be one.
func (f *foreigners) add(uid int) error {
	if trusted(uint32(uid)) || f.enter(uint32(uid), maxForeign, maxForeigners) {
		return nil
	}
	return fmt.Errorf("more than %d processes of uid %d, or %d of other users in all: %w", maxForeign, uid, maxForeigners, syscall.EUSERS)
}

func (f *foreigners) remove(uid int) {
	if !trusted(uint32(uid)) {
		f.leave(uint32(uid))
	}
}

// byUser counts something of each user, and of all of them.
type byUser struct {
	mu  sync.Mutex
	n   map[uint32]int
	all int
}

// enter counts one more, if there are not as many already.
func (b *byUser) enter(uid uint32, most, mostOfAll int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n[uid] >= most || b.all >= mostOfAll {
		return false
	}
	if b.n == nil {
		b.n = make(map[uint32]int)
	}
	b.n[uid]++
	b.all++
	return true
}

func (b *byUser) leave(uid uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	if b.n[uid]--; b.n[uid] == 0 {
		delete(b.n, uid)
	}
}
