package main

import (
	"encoding/json"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJSON: programs get one object on standard output, whatever happens, and people all that they get otherwise.
func TestJSON(t *testing.T) {
	object := func(r *run) (v results) {
		require.NoError(t, json.Unmarshal([]byte(r.out.String()), &v), "%s", &r.out)
		return v
	}
	const group = "239.255.75.1"
	r := start(t, "-m "+group+" -b 127.0.0.1 -json -C 20 -c 2")
	r.errOut.until(t, "receiving data transfers")
	s := start(t, "-s -b 127.0.0.1 -m "+group+" --json -C 20")
	s.ends(t, 0)
	r.ends(t, 0)
	sent, got := object(s), object(r)
	require.Equal(t, "sender", sent.Role)
	require.Len(t, sent.Members, 1)
	require.Equal(t, 20, sent.Members[0].Messages)
	require.Equal(t, 2000, sent.Members[0].Bytes)
	require.Equal(t, "receiver", got.Role)
	require.Empty(t, got.Error)
	require.Len(t, got.Members, 2)
	for _, m := range got.Members {
		require.Equal(t, group, m.Group)
		require.Equal(t, "::ffff:"+group, m.GID)
		require.NotZero(t, m.QPN)
		require.Equal(t, 20, m.Messages)
		require.Equal(t, 2000, m.Bytes)
		require.Len(t, m.Sources, 1)
		require.Equal(t, 20, m.Sources[0].Messages)
		require.NotNil(t, m.Sources[0].Lost)
		require.Zero(t, *m.Sources[0].Lost)
	}

	r = start(t, "-m 239.255.75.2 -b 127.0.0.1 -json -timeout 50ms")
	r.ends(t, -int(syscall.ETIMEDOUT))
	none := object(r)
	require.Equal(t, -int(syscall.ETIMEDOUT)&0xff, none.Status)
	require.Contains(t, none.Error, "0 of 10 messages")
	require.Len(t, none.Members, 1)

	r = start(t, "-m 10.1.2.3 -b 127.0.0.1 -json")
	r.ends(t, -1)
	require.Contains(t, object(r).Error, "failure joining")
	require.Contains(t, r.out.String(), `"members":[]`)
}
