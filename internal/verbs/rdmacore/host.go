package rdmacore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// host is this machine as the file system shows it.
type host struct{ root string }

func (h host) path(elem ...string) string {
	root := h.root
	if root == "" {
		root = "/"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

func (h host) line(elem ...string) string {
	b, err := os.ReadFile(h.path(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (h host) names(elem ...string) []string {
	entries, err := os.ReadDir(h.path(elem...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

const classDir = "sys/class/infiniband"

// devices lists the devices of the kernel's RDMA subsystem, with a driver in user space or not.
func (h host) devices() []string { return h.names(classDir) }

// describe tells about a device what can be known without opening it.
func (h host) describe(name string) verbs.DeviceInfo {
	info := verbs.DeviceInfo{Name: name, Provider: providerName, Transport: verbs.TransportIB}
	if strings.HasPrefix(h.line(classDir, name, "node_type"), "4:") { // RNIC
		info.Transport = verbs.TransportIWARP
	}
	for _, p := range h.names(classDir, name, "ports") {
		n, err := strconv.Atoi(p)
		if err != nil {
			continue
		}
		state := h.line(classDir, name, "ports", p, "state")
		if _, word, ok := strings.Cut(state, ": "); ok {
			state = word
		}
		info.Ports = append(info.Ports, verbs.PortInfo{
			Num: n, State: state, Interface: h.line(classDir, name, "ports", p, "gid_attrs", "ndevs", "0"),
		})
	}
	slices.SortFunc(info.Ports, func(a, b verbs.PortInfo) int { return a.Num - b.Num })
	return info
}

// uverbs names the character device through which a device is used, or nothing.
func (h host) uverbs(name string) string {
	for _, u := range h.names("sys/class/infiniband_verbs") {
		if h.line("sys/class/infiniband_verbs", u, "ibdev") == name {
			return u
		}
	}
	return ""
}

// Words for what is missing; each says what to do.
const (
	hintSoftRoCE = "for Soft-RoCE: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev <interface>"
	hintModule   = "modprobe -a ib_uverbs rdma_ucm"
	hintPass     = "a container needs it passed: docker run --device=/dev/infiniband"
	hintMemlock  = "ulimit -l unlimited, LimitMEMLOCK=infinity in systemd, docker run --ulimit memlock=-1, or CAP_IPC_LOCK"
)

// cannotOpen explains why opening a device failed with err.
func (h host) cannotOpen(name string, err error) error {
	if !slices.Contains(h.devices(), name) {
		return fmt.Errorf("the kernel has no device %s (any more): %w", name, err)
	}
	if cause := h.unusable(name); cause != nil {
		return cause
	}
	switch {
	case errors.Is(err, errNoDriver):
		return &Fault{"libibverbs has no driver for " + name, "apt-get install ibverbs-providers", syscall.ENODEV}
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("opening %s: the limit of the rdma cgroup (rdma.max) is reached: %w", name, err)
	case errors.Is(err, syscall.ENOMEM):
		return fmt.Errorf("opening %s: %w", name, h.memlock(0, err))
	}
	return fmt.Errorf("opening %s: %w", name, err)
}

// unusable explains why a device cannot be opened by anybody here, as far as can be seen without libibverbs; nil if it perhaps can.
func (h host) unusable(name string) error {
	u := h.uverbs(name)
	if u == "" {
		return &Fault{fmt.Sprintf("the kernel offers no verbs for %s to programs", name), hintModule, syscall.ENODEV}
	}
	return h.cannotUse(u)
}

// errNoDriver is a device that libibverbs does not list.
var errNoDriver = errors.New("not among the devices of libibverbs")

// cannotUse explains why a character device below /dev/infiniband cannot be opened; nil if it can.
func (h host) cannotUse(node string) error {
	f, err := os.OpenFile(h.path("dev/infiniband", node), os.O_RDWR, 0)
	if err == nil {
		return f.Close()
	}
	return explainNode(node, err)
}

// explainNode says what to do about a character device that could not be opened.
func explainNode(node string, err error) error {
	shown := "/dev/infiniband/" + node
	var perr *fs.PathError
	if errors.As(err, &perr) {
		err = perr.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint := hintPass
		if node == cmNode {
			hint = "modprobe rdma_ucm; " + hintPass
		}
		return &Fault{shown + " does not exist", hint, err}
	case errors.Is(err, syscall.EPERM): // not the file's mode, which gives EACCES
		return &Fault{
			shown + ": the cgroup of this container or service forbids it",
			"docker run --device=/dev/infiniband, DeviceAllow=char-infiniband_* in systemd", err,
		}
	case errors.Is(err, syscall.EACCES):
		return &Fault{
			fmt.Sprintf("%s: no permission for user %d", shown, os.Getuid()),
			"join the group that owns it (often rdma), or chmod 0666 " + shown, err,
		}
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.ENODEV):
		return &Fault{shown + " is left over from a device or module that is gone", hintModule, err}
	}
	return fmt.Errorf("%s: %w", shown, err)
}

// cmNode is the character device of the connection manager.
const cmNode = "rdma_cm"

// cannotManage explains why the connection manager cannot be used.
func (h host) cannotManage(err error) error {
	if len(h.devices()) == 0 {
		return errNoDevices
	}
	if cause := h.cannotUse(cmNode); cause != nil {
		return cause
	}
	return fmt.Errorf("connection manager (/dev/infiniband/%s): %w", cmNode, err)
}

// errNoDevices is a host without RDMA.
var errNoDevices = fmt.Errorf("this host has no RDMA device (%s)", hintSoftRoCE)

// memlock explains that memory could not be locked: need bytes more were wanted.
func (h host) memlock(need int, err error) error {
	if !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	limit, ok := memlockLimit()
	if !ok {
		return err
	}
	used := h.status("VmPin:")
	if limit >= used+uint64(need) {
		return err // something else
	}
	return &Fault{
		fmt.Sprintf("%d bytes of locked memory are needed beside %d in use, and RLIMIT_MEMLOCK is %d", need, used, limit), hintMemlock, err,
	}
}

// status reads a size of this process in bytes.
func (h host) status(key string) uint64 {
	for l := range strings.Lines(h.line("proc/self/status")) {
		if v, ok := strings.CutPrefix(l, key); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 54)
			return n << 10
		}
	}
	return 0
}

// interfaces lists the network interfaces that a device's driver has made, as those of InfiniBand and of RoCE cards are.
func (h host) interfaces(device string) (names []string) {
	for _, name := range h.names("sys/class/net") {
		if slices.Contains(h.names("sys/class/net", name, "device/infiniband"), device) {
			names = append(names, name)
		}
	}
	return names
}

// infiniBand tells whether a device has a port that is not Ethernet.
func (h host) infiniBand(device string) bool {
	return slices.ContainsFunc(h.names(classDir, device, "ports"), func(port string) bool {
		return h.line(classDir, device, "ports", port, "link_layer") == "InfiniBand"
	})
}
