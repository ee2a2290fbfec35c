package simnet_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

func TestSeedOfTheEnvironment(t *testing.T) {
	t.Setenv(simnet.SeedEnv, "")
	require.EqualValues(t, 7, simnet.Seed(t, 7))
	require.Equal(t, []uint64{1, 2, 3}, simnet.Seeds(t, 3, false))
	fresh := simnet.Seeds(t, 3, true)
	require.NotEqual(t, fresh, simnet.Seeds(t, 3, true))
	t.Setenv(simnet.SeedEnv, "18446744073709551615")
	require.Equal(t, uint64(1<<64-1), simnet.Seed(t, 7))
	for _, fresh := range []bool{false, true} {
		require.Equal(t, []uint64{1<<64 - 1}, simnet.Seeds(t, 3, fresh))
	}
}

func TestRandomRepeatsItself(t *testing.T) {
	read := func(seed uint64) []byte {
		b := make([]byte, 100)
		_, err := io.ReadFull(simnet.Random(seed), b)
		require.NoError(t, err)
		return b
	}
	first := read(1)
	require.Equal(t, first, read(1))
	require.NotEqual(t, first, read(2))
}
