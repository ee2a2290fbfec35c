package netio

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// Holder is a UDP socket of this network namespace.
type Holder struct {
	UID   int
	Inode uint64 // by which the descriptors of processes name it (proc(5), /proc/PID/fd)
}

// Holders lists the sockets that are bound to a UDP port, of either address family.
func Holders(port uint16) (hs []Holder) {
	for _, name := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		if f, err := os.Open(name); err == nil {
			hs = append(hs, holders(f, port)...)
			_ = f.Close()
		}
	}
	return hs
}

// holder finds the uid of a socket on port in a table of proc(5)'s /proc/net/udp form; -1 if there is none.
func holder(r io.Reader, port uint16) int {
	hs := holders(r, port)
	if len(hs) == 0 {
		return -1
	}
	return hs[len(hs)-1].UID
}

func holders(r io.Reader, port uint16) (hs []Holder) {
	for sc := bufio.NewScanner(r); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 10 {
			continue
		}
		_, hex, ok := strings.Cut(f[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); !ok || err != nil || p != uint64(port) {
			continue
		}
		uid, err := strconv.Atoi(f[7])
		inode, err2 := strconv.ParseUint(f[9], 10, 64)
		if err == nil && err2 == nil {
			hs = append(hs, Holder{uid, inode})
		}
	}
	return hs
}
