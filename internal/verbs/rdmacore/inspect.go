package rdmacore

import (
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Inspection is what can be seen of a host without a connection, in the order in which things build on each other. Errors are
// a *[Fault] where something can be done about them.
type Inspection struct {
	Kernel  []string // devices of the kernel's
	None    error    // why there are none, if so
	Modules []string // of the kernel's RDMA subsystem that are loaded, as far as devices need them

	Build     error    // what the build lacks
	Libraries error    // why the libraries cannot be used, if not for the build
	Loaded    []string // the libraries' files
	Manager   error    // why the connection manager cannot be used

	Devices []DeviceInspection

	Memlock Memlock
}

// DeviceInspection is what can be seen of a device.
type DeviceInspection struct {
	verbs.DeviceInfo
	Node   error // why its character device cannot be used
	Driver error // why it cannot be used for another reason
}

// Memlock is how much memory the process may lock, which is what registered memory is.
type Memlock struct {
	Limited     bool
	Limit, Used uint64 // bytes
	Fix         string // how to raise the limit
}

// capIPCLock is the bit of CAP_IPC_LOCK, to which the limit of locked memory does not apply (capabilities(7)).
const capIPCLock = 1 << 14

// Inspect looks at the host. Devices are opened for a moment.
func (p *Provider) Inspect() *Inspection {
	h := p.host
	in := &Inspection{Kernel: h.devices()}
	if len(in.Kernel) == 0 {
		in.None = errNoDevices
	}
	for _, m := range []string{"ib_core", "ib_uverbs", "rdma_ucm", "rdma_rxe", "siw"} {
		if h.names("sys/module", m) != nil {
			in.Modules = append(in.Modules, m)
		}
	}
	switch why := p.whyNot(); {
	case errors.As(why, new(notBuilt)):
		in.Build = why
	case why != nil:
		in.Libraries = why
	default:
		in.Loaded = host{}.loaded() // this process's, whatever the root
	}
	if in.None == nil {
		in.Manager = h.cannotUse(cmNode)
	}
	infos, err := p.Devices()
	for _, name := range in.Kernel {
		d := DeviceInspection{DeviceInfo: h.describe(name), Node: h.unusable(name)}
		if i := slices.IndexFunc(infos, func(i verbs.DeviceInfo) bool { return i.Name == name }); i >= 0 {
			d.DeviceInfo = infos[i]
		}
		if d.Node == nil && in.Build == nil && in.Libraries == nil {
			if d.Driver = d.Unusable; err != nil {
				d.Driver = err
			}
		}
		in.Devices = append(in.Devices, d)
	}
	in.Memlock = h.memlockState()
	return in
}

// loaded are the files of the libraries in this process.
func (h host) loaded() (files []string) {
	for l := range strings.Lines(h.line("proc/self/maps")) {
		f := strings.Fields(l)
		if len(f) == 0 {
			continue
		}
		name := filepath.Base(f[len(f)-1])
		if (strings.HasPrefix(name, "libibverbs.so") || strings.HasPrefix(name, "librdmacm.so")) && !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	return files
}

func (h host) memlockState() Memlock {
	m := Memlock{Used: h.status("VmPin:"), Fix: hintMemlock}
	if m.Limit, m.Limited = memlockLimit(); !m.Limited {
		return m
	}
	for l := range strings.Lines(h.line("proc/self/status")) {
		if v, ok := strings.CutPrefix(l, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			m.Limited = err != nil || caps&capIPCLock == 0
		}
	}
	return m
}
