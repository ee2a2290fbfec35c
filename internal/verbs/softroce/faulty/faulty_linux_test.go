package faulty

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

func TestMain(m *testing.M) {
	testnet.Main()
	goleak.VerifyTestMain(m)
}

// TestFaults: the call that was asked for fails, that time and no other.
func TestFaults(t *testing.T) {
	f := new(Faults)
	p := Provider{softroce.Default(), f, false}
	infos, err := p.Devices()
	require.NoError(t, err)
	d, err := p.Open(infos[0].Name)
	require.NoError(t, err)
	injected := errors.New("injected")
	f.Arm("protection domain", 2, injected)
	for i := range 3 {
		assert.Equal(t, i > 1, f.Hit())
		pd, err := d.AllocPD()
		if i == 1 {
			require.ErrorIs(t, err, injected)
			require.Nil(t, pd)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, pd.Close())
	}
	f.Arm("close device", 1, injected)
	require.ErrorIs(t, d.Close(), injected)
	require.NoError(t, d.Close(), "it is gone")
}
