package rdmanet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// datagrams sums up what AllStats tells of datagrams.
func datagrams() (sum rdmanet.PacketStats) {
	for _, d := range rdmanet.AllStats() {
		sum.BytesRead += d.Datagrams.BytesRead
		sum.BytesWritten += d.Datagrams.BytesWritten
		sum.MessagesRead += d.Datagrams.MessagesRead
		sum.MessagesWritten += d.Datagrams.MessagesWritten
		sum.Dropped += d.Datagrams.Dropped
		sum.Truncated += d.Datagrams.Truncated
	}
	return sum
}

// What datagrams do is part of a device's statistics, while they are open and when they are closed.
func TestAllStatsDatagrams(t *testing.T) {
	before := datagrams()
	s := localPacket(t)
	d := dialPacket(t, s.LocalAddr())
	for range 3 {
		_, err := d.Write([]byte("twelve bytes"))
		require.NoError(t, err)
		gets(t, s, "twelve bytes")
	}
	_, err := d.Write([]byte("cut"))
	require.NoError(t, err)
	_, err = s.Read(make([]byte, 1))
	require.NoError(t, err)
	want := before
	want.BytesWritten += 39
	want.BytesRead += 39
	want.MessagesWritten += 4
	want.MessagesRead += 4
	want.Truncated++
	require.Equal(t, want, datagrams())
	require.NoError(t, d.Close())
	require.NoError(t, s.Close())
	require.Error(t, s.Close())
	require.Equal(t, want, datagrams())
}
