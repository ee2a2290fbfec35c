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

// trusted tells whether a user's processes are peers without anybody's leave: they are of this user, or root's, which can do
// whatever it likes. Each side looks for itself.
func trusted(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

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
	return fmt.Sprintf("port %d is held by a process of uid %d, and this is uid %d: shared memory with other users has to be asked for (by name here, by Admit there)",
		e.port, e.uid, os.Geteuid())
}

// maxForeign bounds the links with processes of one other user. Those of this user could use up what there is anyhow.
const maxForeign = 64

// foreigners counts links by user.
type foreigners struct {
	mu sync.Mutex
	n  map[int]int
}

// add counts one more, if there may be one.
func (f *foreigners) add(uid int) error {
	if trusted(uint32(uid)) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n[uid] == maxForeign {
		return fmt.Errorf("more than %d processes of uid %d: %w", maxForeign, uid, syscall.EUSERS)
	}
	if f.n == nil {
		f.n = make(map[int]int)
	}
	f.n[uid]++
	return nil
}

func (f *foreigners) remove(uid int) {
	if trusted(uint32(uid)) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n[uid]--; f.n[uid] == 0 {
		delete(f.n, uid)
	}
}
