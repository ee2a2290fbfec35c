package cm

import (
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// DeviceEnv names the environment variable that stands in for an empty Device list.
const DeviceEnv = "RDMANET_DEVICE"

// DeviceListError is a Device list that cannot be read. It is EINVAL to errors.Is.
type DeviceListError struct {
	List    string
	Element string // the bad one
	Why     string
	Env     bool // the list comes from RDMANET_DEVICE
	Have    []string
}

func (e *DeviceListError) Error() string {
	from := "device list "
	if e.Env {
		from = DeviceEnv + " "
	}
	return from + strconv.Quote(e.List) + ": element " + strconv.Quote(e.Element) + " " + e.Why
}

func (e *DeviceListError) Unwrap() error { return syscall.EINVAL }

// Names lists what an element of a Device list may be here: providers of this build, then devices.
func (m *Manager) Names() []string {
	var names []string
	for _, p := range m.Providers {
		names = append(names, p.Name())
	}
	for _, d := range m.Devices() {
		if !slices.Contains(names, d.Name) {
			names = append(names, d.Name)
		}
	}
	return names
}

// candidate is one element of a Device list, looked up.
type candidate struct {
	name   string // the element, as written
	p      verbs.Provider
	device string // empty: any of p's
	port   int    // 0: any
	named  bool   // the user wrote it
	err    error  // why it cannot be used; p may then be nil
}

// implied tells whether nobody asked for this provider by name.
func (c *candidate) implied() bool { return !c.named }

func (c *candidate) isShm() bool { return c.providerName() == Shm }

// withoutShm leaves shared memory out, unless it is named.
func withoutShm(cands []candidate) []candidate {
	return slices.DeleteFunc(cands, func(c candidate) bool { return c.name == Shm && c.implied() })
}

func (c *candidate) providerName() string {
	if c.p == nil {
		return ""
	}
	return c.p.Name()
}

// candidates reads a Device list: elements separated by commas, best first,
// each a provider or a device, the latter with a port number after a slash if
// wanted. An empty list is RDMANET_DEVICE, or every provider there is. An
// element that this host or build does not have is no error but a candidate that cannot serve.
func (m *Manager) candidates(list string) ([]candidate, error) {
	env := false
	if list == "" {
		list = m.getenv(DeviceEnv)
		env = true
	}
	if strings.TrimSpace(list) == "" && env {
		var cs []candidate
		for _, name := range Known {
			c := candidate{name: name, p: m.provider(name)}
			if c.p == nil {
				c.err = errNotInBuild
			}
			cs = append(cs, c)
		}
		return cs, nil
	}
	var cs []candidate
	for element := range strings.SplitSeq(list, ",") {
		element = strings.TrimSpace(element)
		c, why := m.candidate(element)
		if why != "" {
			return nil, &DeviceListError{List: list, Element: element, Why: why, Env: env, Have: m.Names()}
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// candidate looks one element up; why is not empty if it is malformed.
func (m *Manager) candidate(element string) (c candidate, why string) {
	name, port, hasPort := strings.Cut(element, "/")
	c = candidate{name: element, named: true}
	if name == "" {
		return c, "is empty"
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r > '~' }); i >= 0 {
		return c, "is no name of a provider or device"
	}
	if hasPort {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 255 || strconv.Itoa(n) != port {
			return c, "has a bad port: a number from 1 to 255 follows the slash"
		}
		c.port = n
	}
	if slices.Contains(Known, name) || m.provider(name) != nil {
		if hasPort {
			return c, "names a port of a provider: only devices have ports"
		}
		if c.p = m.provider(name); c.p == nil {
			c.err = errNotInBuild
		}
		return c, ""
	}
	c.device = name
	for _, p := range m.Providers {
		info, ok := find(p, name)
		if !ok {
			continue
		}
		c.p = p
		switch {
		case info.Unusable != nil:
			c.err = unusableError{info.Unusable}
		case hasPort && !slices.ContainsFunc(info.Ports, func(p verbs.PortInfo) bool { return p.Num == c.port }):
			c.err = noDevicef("device %s has no port %d", name, c.port)
		}
		return c, ""
	}
	c.err = &UnknownDeviceError{Name: name, Have: m.Names()}
	return c, ""
}

// find describes a provider's device. It opens no other: this is done at each dial that names a device.
func find(p verbs.Provider, name string) (info verbs.DeviceInfo, ok bool) {
	if f, ok := p.(verbs.Finder); ok {
		return f.Find(name)
	}
	infos, err := p.Devices()
	if err != nil {
		return info, false
	}
	for i := range infos {
		if infos[i].Name == name {
			return infos[i], true
		}
	}
	return info, false
}

// UnknownDeviceError is a device that this host does not have.
type UnknownDeviceError struct {
	Name string
	Have []string // providers and devices that there are
}

func (e *UnknownDeviceError) Error() string {
	return "no device of that name: there are " + strings.Join(e.Have, ", ")
}

func (e *UnknownDeviceError) Is(target error) bool { return target == verbs.ErrNoDevice }
