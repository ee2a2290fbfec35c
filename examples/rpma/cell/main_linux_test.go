package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExample(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	var out bytes.Buffer
	require.NoError(t, example.Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), "client: wrote 1000 versions, read whole values only")
	assert.Contains(t, out.String(), `server: version 1000 is "1000,1000,1000,1000,"...`)
}
