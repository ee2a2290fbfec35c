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
	require.NoError(t, newExample(40, 10).Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), "client: sent 10 messages on each of 40 connections")
	assert.Contains(t, out.String(), "server: 40 connections, 400 messages, the sum of all is 7800") // 10 * (0 + ... + 39)
}
