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
	assert.Contains(t, out.String(), "client: 4 different words\n")
	assert.Contains(t, out.String(), `client: "never" 1002 times, carried by softroce, softroce0`)
	assert.Contains(t, out.String(), "client: the server says: a word has letters\n")
	assert.Contains(t, out.String(), "server: the client has gone\n")
}
