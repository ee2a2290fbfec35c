//go:build !linux || !cgo

package rdmacore

import (
	"context"
	"runtime"

	"github.com/go-rdma/rdma/internal/verbs"
)

// load tells why this build has nothing to load.
func load() error {
	if runtime.GOOS != "linux" {
		return notBuilt{&Fault{"RDMA devices are used on Linux only", "", nil}}
	}
	return notBuilt{&Fault{"built without cgo", "install gcc, libibverbs-dev and librdmacm-dev, then CGO_ENABLED=1 go build -a", nil}}
}

type core struct{}

func (*core) init(*Provider) {}

func (*core) devices([]string) ([]verbs.DeviceInfo, error) { return nil, nil } // load always fails

// Open implements [verbs.Provider].
func (p *Provider) Open(name string) (verbs.Device, error) { return nil, p.check(name, 0) }

// Resolve implements [verbs.Provider].
func (p *Provider) Resolve(_ context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	return nil, p.check(attr.Device, attr.Port)
}

// Listen implements [verbs.Provider].
func (p *Provider) Listen(_ context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	return nil, p.check(attr.Device, attr.Port)
}
