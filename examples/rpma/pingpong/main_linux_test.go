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
	require.NoError(t, newExample(200).Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), "client: 200 rounds: median ")
	assert.Contains(t, out.String(), "server: answered 200 messages")
}
