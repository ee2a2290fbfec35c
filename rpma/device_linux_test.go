package rpma_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rpma"
)

func TestMain(m *testing.M) {
	if os.Getenv("RDMANET_DEVICE") == "" {
		os.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	}
	if os.Getenv("RPMA_TEST_ADDR") != "" {
		leak.Start()
		leak.Exit(m.Run()) // without goleak: the C libraries' event channel stays
	}
	testnet.Main() // other packages' tests stop processes
	leak.Start()
	goleak.VerifyTestMain(m, goleak.Cleanup(leak.Exit))
}

func TestDevices(t *testing.T) {
	ds, err := rpma.Devices()
	require.NoError(t, err)
	provider := "softroce" // it is everywhere, but where the kernel has its port
	if os.Getenv("RPMA_TEST_ADDR") != "" {
		provider = os.Getenv("RDMANET_DEVICE")
	}
	var found bool
	for _, d := range ds {
		if d.Provider != provider {
			continue
		}
		assert.NotEmpty(t, d.Name)
		require.NoError(t, d.Unusable)
		assert.Positive(t, d.MaxQP)
		assert.Positive(t, d.MaxCQE)
		assert.Positive(t, d.MaxMsgSize)
		require.NotEmpty(t, d.Ports)
		p := d.Ports[0]
		assert.Equal(t, 1, p.Num)
		assert.Equal(t, "ACTIVE", p.State)
		assert.Contains(t, []int{256, 512, 1024, 2048, 4096}, p.MTU)
		found = found || slices.Contains(p.GIDs, netip.MustParseAddr(local))
	}
	assert.True(t, found, "%s has %s", provider, local)
}

func TestLookupLocal(t *testing.T) {
	own := []string{local, local + ":80"}
	if local == "127.0.0.1" {
		own = append(own, "localhost", "localhost:80", "127.3.4.5", "")
	}
	for _, address := range own {
		d, err := rpma.LookupLocal(address)
		require.NoError(t, err, "%q", address)
		assert.Equal(t, os.Getenv("RDMANET_DEVICE"), d.Provider)
	}
	for _, address := range []string{"203.0.113.77", "203.0.113.77:80", "2001:db8::77", "[2001:db8::77]:80"} {
		d, err := rpma.LookupLocal(address)
		require.ErrorIs(t, err, verbs.ErrNoDevice, address)
		assert.Nil(t, d)
		assert.Contains(t, err.Error(), "has no such address")
	}
	_, err := rpma.LookupLocal("127.0.0.1:nosuchservice")
	require.Error(t, err)
}

func TestLookupRemote(t *testing.T) {
	own := []string{local, local + ":80"}
	if local == "127.0.0.1" {
		own = append(own, "localhost")
	}
	for _, address := range own { // whether anybody listens there does not matter
		d, err := rpma.LookupRemote(t.Context(), address)
		require.NoError(t, err)
		assert.Equal(t, os.Getenv("RDMANET_DEVICE"), d.Provider)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := rpma.LookupRemote(ctx, local)
	require.ErrorIs(t, err, context.Canceled)
	_, err = rpma.LookupRemote(t.Context(), "no such host.invalid")
	var de *net.DNSError
	require.ErrorAs(t, err, &de)
}
