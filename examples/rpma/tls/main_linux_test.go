package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/examples/internal/identities"
)

func TestExample(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	ids, err := identities.New()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, newExample(ids).Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), "client: an offer that was changed on its way: local error: tls: bad record MAC")
	assert.Contains(t, out.String(), "server: refused a connection of somebody who has not asked over TLS")
	assert.Contains(t, out.String(), `server: client wrote "hello"`)
	require.ErrorContains(t, newExample(ids).Run(t.Context(), &out, []string{"serve", ":0"}), "in one process")
}
