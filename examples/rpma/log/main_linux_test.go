package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExample: a second client goes on where the first one ended, and the file has the records of both.
func TestExample(t *testing.T) {
	t.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is
	file := filepath.Join(t.TempDir(), "log")
	for _, want := range []string{"server: the log has 7 records", "server: the log has 14 records"} {
		var out bytes.Buffer
		require.NoError(t, newExample(file, 7).Run(t.Context(), &out, nil))
		assert.Contains(t, out.String(), "client: appended 7 records, each persistent, in ")
		assert.Contains(t, out.String(), want)
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var last string
	n, err := replay(b, func(data []byte) { last = string(data) })
	require.NoError(t, err)
	assert.Equal(t, 14, n)
	assert.Equal(t, "record 7 of 7", last)

	b[start+header] ^= 1
	_, err = replay(b, func([]byte) {})
	require.ErrorContains(t, err, "wrong CRC")
	binary.LittleEndian.PutUint64(b[valid:], 1<<40)
	_, err = replay(b, func([]byte) {})
	require.ErrorContains(t, err, "valid bytes")

	require.NoError(t, os.WriteFile(file, []byte("something else, and long"), 0o600))
	require.ErrorContains(t, newExample(file, 1).Run(t.Context(), new(bytes.Buffer), nil), "is something else")
}
