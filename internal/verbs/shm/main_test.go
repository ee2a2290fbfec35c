//go:build linux

package shm

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/testnet"
)

func TestMain(m *testing.M) {
	testnet.Main()
	leak.Start()
	goleak.VerifyTestMain(m, goleak.Cleanup(leak.Exit))
}
