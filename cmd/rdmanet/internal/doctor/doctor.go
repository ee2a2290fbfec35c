// Package doctor finds out why RDMA does not work on a host. It looks in the order in which things build on each other, so
// that the first fault is the one to mend first, and in the end lets data go over every provider.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
)

// Status is what came of a check.
type Status string

// Statuses, from good to bad. Skipped is what could not be looked at, for the faults before it.
const (
	OK      Status = "ok"
	Note    Status = "note" // worth knowing, nothing to mend
	Skipped Status = "skipped"
	Warning Status = "warning" // works here and now, may not elsewhere
	Failed  Status = "failed"
)

// Check is one thing that was looked at.
type Check struct {
	Name   string `json:"name"`
	Device string `json:"device,omitempty"` // or provider
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do, often what to type
}

// Report is all of them.
type Report struct {
	Works  []string `json:"works"` // providers and devices over which data went
	Checks []Check  `json:"checks"`
	First  *Check   `json:"first,omitempty"` // to be mended first

	named bool // somebody said what is to work
}

// Config says what to look at.
type Config struct {
	// Devices is a list as a rdmanet.Dialer's: only these are to work. Empty: all there are.
	Devices string

	// Peer, if not empty, is the address of an rping server or "rdmanet ping --listen" to reach.
	Peer string

	// Root is the directory that stands for / when sysfs, procfs and /dev are looked at. Empty: "/".
	Root string

	// Tell, if not nil, is told of each check at once.
	Tell func(Check)
}

// doctor is one examination.
type doctor struct {
	Config
	report Report
	core   *rdmacore.Inspection

	// RDMA devices that what was looked at leaves a chance.
	candidates []rdmacore.DeviceInspection
	holdsPort  bool // rdma_rxe has UDP port 4791
}

// Run looks at everything.
func Run(ctx context.Context, cfg Config) *Report {
	d := &doctor{Config: cfg, report: Report{Works: []string{}, Checks: []Check{}, named: cfg.Devices != ""}}
	core := rdmacore.Default()
	if cfg.Root != "" {
		core = rdmacore.New(&rdmacore.Config{Root: cfg.Root})
	}
	d.core = core.Inspect()
	if d.wants(cm.RDMACore, "") {
		d.kernel()
		d.build()
		d.nodes()
		d.drivers()
		d.memlock()
		d.links()
	}
	if d.wants(cm.SoftRoCE, softroceDevice) {
		d.addresses()
		d.port()
		d.nat()
	}
	d.transfers(ctx)
	if d.Peer != "" {
		d.peer(ctx)
	}
	d.report.First = d.first()
	return &d.report
}

// softroceDevice and shmDevice are the names of the embedded device and of shared memory.
const (
	softroceDevice = "softroce0"
	shmDevice      = "shm0"
)

// wants tells whether a device of a provider is to work. An empty device is any.
func (d *doctor) wants(provider, device string) bool {
	if d.Devices == "" {
		return true
	}
	for e := range strings.SplitSeq(d.Devices, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(e), "/")
		switch {
		case name == provider || name == device && device != "":
			return true
		case provider == cm.RDMACore && device == "" && !slices.Contains(cm.Known, name) && name != softroceDevice && name != shmDevice:
			return true // a device that has another provider's name would be rdmacore's
		}
	}
	return false
}

// asked tells whether RDMA devices are asked for by name: then it is a fault that there are none.
func (d *doctor) asked() bool { return d.Devices != "" && d.wants(cm.RDMACore, "") }

func (d *doctor) add(c Check) {
	d.report.Checks = append(d.report.Checks, c)
	if d.Tell != nil {
		d.Tell(c)
	}
}

func (d *doctor) ok(name, device, format string, args ...any) {
	d.add(Check{Name: name, Device: device, Status: OK, Detail: fmt.Sprintf(format, args...)})
}

func (d *doctor) skip(name, device, why string) {
	d.add(Check{Name: name, Device: device, Status: Skipped, Detail: why})
}

// fault adds a check that failed, or a warning, with what the error says to do.
func (d *doctor) fault(s Status, name, device string, err error, fix string) {
	c := Check{Name: name, Device: device, Status: s, Detail: err.Error(), Fix: fix}
	var f *rdmacore.Fault
	if errors.As(err, &f) {
		if c.Detail = f.What; f.Err != nil {
			c.Detail += ": " + f.Err.Error()
		}
		if f.Fix != "" {
			c.Fix = f.Fix
		}
	}
	d.add(c)
}

// first is what to mend first: the first thing that failed, or where nothing has, that may fail.
func (d *doctor) first() *Check {
	for _, s := range []Status{Failed, Warning} {
		for i := range d.report.Checks {
			if c := &d.report.Checks[i]; c.Status == s && c.Fix != "" {
				return c
			}
		}
	}
	return nil
}

// HostOnly tells whether data went over nothing but shared memory, which nobody asked for by name: no other host is reached.
func (r *Report) HostOnly() bool {
	return !r.named && slices.Equal(r.Works, []string{cm.Shm})
}

// Good tells whether data went over something that leads to other hosts or was named, and to the peer if there is one to reach.
func (r *Report) Good() bool {
	for _, c := range r.Checks {
		if c.Name == peerCheck && c.Status == Failed {
			return false
		}
	}
	return len(r.Works) > 0 && !r.HostOnly()
}

// peerCheck names the check of the peer.
const peerCheck = "peer"
