//go:build !linux

package shm

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Provider says that there is no shared memory here.
type Provider struct{}

// Default returns the process's provider.
var Default = sync.OnceValue(func() *Provider { return &Provider{} })

var errSystem = fmt.Errorf("shm: %w: shared memory needs Linux", verbs.ErrNoDevice)

// Name implements [verbs.Provider].
func (p *Provider) Name() string { return "shm" }

// Devices implements [verbs.Provider].
func (p *Provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

// Open implements [verbs.Provider].
func (p *Provider) Open(string) (verbs.Device, error) { return nil, errSystem }

// Resolve implements [verbs.Provider].
func (p *Provider) Resolve(context.Context, *verbs.CMIDAttr) (verbs.CMID, error) {
	return nil, errSystem
}

// Listen implements [verbs.Provider].
func (p *Provider) Listen(context.Context, *verbs.ListenAttr) (verbs.Listener, error) {
	return nil, errSystem
}
