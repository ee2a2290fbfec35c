package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// port looks who has RoCEv2's UDP port.
func (d *doctor) port() {
	const name = "UDP port 4791"
	hs := netio.Holders(netio.Port)
	if len(hs) == 0 {
		d.ok(name, cm.SoftRoCE, "free")
		return
	}
	var others []string // of other users
	var own []string
	uid := os.Geteuid()
	for _, h := range hs {
		who := holderName(d.path("proc"), h)
		switch {
		case who == "" && h.UID == 0 && d.rxe():
			d.holdsPort = true
		case h.UID == uid:
			own = append(own, cmp.Or(who, "another process"))
		default:
			who = cmp.Or(who, "a process")
			others = append(others, fmt.Sprintf("%s (uid %d)", who, h.UID))
		}
	}
	if d.holdsPort {
		d.add(Check{
			Name: name, Device: cm.SoftRoCE, Status: Note,
			Detail: "the kernel's Soft-RoCE (rdma_rxe) has it: its devices work, the embedded one does not beside them",
		})
		return
	}
	if others = distinct(others); len(others) > 0 {
		d.add(Check{
			Name: name, Device: cm.SoftRoCE, Status: Failed, Detail: "processes of one user share the port, and another user's have it: " + strings.Join(others, ", "),
			Fix: fmt.Sprintf("run as that user, or end %s, or use another network namespace (as root, ss -lunp 'sport = :4791' shows the processes)", others[0]),
		})
		return
	}
	d.ok(name, cm.SoftRoCE, "shared with %s of this user", strings.Join(distinct(own), ", "))
}

func distinct(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}

// rxe tells whether the kernel's Soft-RoCE is loaded.
func (d *doctor) rxe() bool { return slices.Contains(d.core.Modules, "rdma_rxe") }

// holderName names the process that has a socket. It is empty if none can be seen.
func holderName(proc string, h netio.Holder) string {
	want := "socket:[" + strconv.FormatUint(h.Inode, 10) + "]"
	entries, err := os.ReadDir(proc)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		fds, err := os.ReadDir(filepath.Join(proc, e.Name(), "fd"))
		if err != nil {
			continue // another user's, or it has ended
		}
		for _, fd := range fds {
			if l, err := os.Readlink(filepath.Join(proc, e.Name(), "fd", fd.Name())); err == nil && l == want {
				comm, _ := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
				return fmt.Sprintf("process %s (%s)", e.Name(), strings.TrimSpace(string(comm)))
			}
		}
	}
	return ""
}
