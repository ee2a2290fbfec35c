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
	assert.Contains(t, out.String(), `client: read "What is here can be read from afar." of 1048576 bytes`)
	assert.Contains(t, out.String(), `server: found "And what is here was written from afar."`)
}
