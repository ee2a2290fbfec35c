package verbs

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// SameUser is for providers: it tells whether processes of a user, as SO_PEERCRED names him, may do what this process's user may: they are his, or root's,
// which can do whatever it likes.
func SameUser(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() && !Nobody(uid) }

// Nobody tells whether a user ID stands for all users that have none in this user namespace (user_namespaces(7)): two
// processes that have it may be of two users.
func Nobody(uid uint32) bool {
	n, some := overflowUser()
	return some && uid == n
}

// overflowUser is the ID of users without one, if there are any.
var overflowUser = sync.OnceValues(func() (uid uint32, some bool) {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return 0, false // a kernel without user namespaces
	}
	n, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil {
		n = []byte("65534")
	}
	return overflow(string(ids), string(n))
})

func overflow(ids, number string) (uid uint32, some bool) {
	const all = "4294967295"
	if f := strings.Fields(ids); len(f) == 3 && f[0] == "0" && f[2] == all {
		return 0, false // each user has a number
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32)
	return uint32(n), err == nil
}
