package prometheus

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/testnet"
)

func TestMain(m *testing.M) {
	if os.Getenv("RDMANET_DEVICE") == "" {
		os.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	}
	testnet.Main()
	goleak.VerifyTestMain(m)
}
