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
	strangers, err := identities.New()
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, newExample(ids, strangers).Run(t.Context(), &out, nil))
	assert.Contains(t, out.String(), `client: with a certificate: "hello, client, by HTTP/2.0"`)
	// In TLS 1.3 a client's handshake is done before the server has looked at its certificate. What the client writes then may find that
	// the server has gone before it has read why, so why is what the server says.
	assert.Regexp(t, `client: without one: Get "https://.+": .+`, out.String())
	assert.Regexp(t, `server: http: TLS handshake error .*: tls: client didn't provide a certificate`, out.String())
	assert.Regexp(t, `client: with a stranger's: Get "https://.+": .+`, out.String())
	assert.Regexp(t, `server: http: TLS handshake error .*: tls: failed to verify certificate: x509: certificate signed by unknown authority`, out.String())
	assert.Regexp(t, `client: trusting another authority: .*certificate signed by unknown authority`, out.String())
	require.ErrorContains(t, newExample(ids, strangers).Run(t.Context(), &out, []string{"serve", ":0"}), "in one process")
}
