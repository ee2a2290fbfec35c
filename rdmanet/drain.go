package rdmanet

import (
	"context"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/ring"
)

// Drain waits until connections that were closed have delivered what was
// written to them, or failed to. Call it before a program ends: the embedded device's
// transport dies with its process. The error is the context's.
func Drain(ctx context.Context) error {
	if err := ring.Drain(ctx); err != nil {
		return err
	}
	return cm.Default().Drain(ctx)
}
