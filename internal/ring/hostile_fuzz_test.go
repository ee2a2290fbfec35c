package ring

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
)

// FuzzPeer lets a peer write whatever immediates and descriptors it likes, while the
// application reads, writes and closes as it likes. The peer knows, by a plain reading of the rules,
// what it may do. Whether it keeps to them or not: all that the Conn posts lies in memory that is
// its own or was published to it, the application gets what was written, in order and all of it,
// and the first breach of a rule ends the connection with ErrProtocol.
func FuzzPeer(f *testing.F) {
	n := newNIC()
	n.link = &nicLink{n: n}
	dev, err := rc.OpenDevice(nicID{nicLink: n.link}) // keeps an arena from one run to the next
	require.NoError(f, err)
	b, err := dev.Get(rc.MinBlock, false)
	require.NoError(f, err)
	dev.Put(b)
	f.Cleanup(func() { require.NoError(f, dev.Release()) })
	for _, script := range [][]byte{
		{peerData, 1, 0, peerFlush, appRead, 1, 0, appWrite, 9, 0, peerAck, 3, peerFlush},
		{peerFill, peerFill, peerFlush, appRead, 255, 255, peerFill, peerFlush, appRead, 255, 255},
		{appWrite, 255, 9, peerPublish, 10, 0, peerFlush, peerPublish, 1, 0, peerFlush, peerLimit, 255, 1, peerAck, 9, peerFlush},
		{peerData, 9, 0, peerEnd, ctrlShutdown, peerData, 9, 0, peerLimit, 9, 0, peerEnd, ctrlDisconnect, peerFlush, appWrite, 1, 1},
		{peerData, 1, 0, peerLie, 0, 200, 0, 100, 0, peerData, 1, 0, peerEnd, ctrlDisconnect, peerFlush},
		{peerOdd, 3, peerData, 7, 0, peerEnd, ctrlShutdown, peerFlush},
		{peerEnd, ctrlDisconnect, peerLie, 0, 200, 0, 100, 0, peerFlush},
		{peerPublish, 9, 0, peerPublish, 9, 0, peerPublish, 9, 0, peerFlush},
		{peerPublish, 9, 0, peerPublish, 9, 0, peerData, 9, 0, peerBreak, peerFlush},
		{peerForge, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, peerFlush},
		{peerForge, 1, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1, 1, 1, 1, 1, 1, 1, peerFlush},
		{peerForge, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, peerFlush},
		{peerOdd, 8, peerFlush}, {peerOdd, 16, peerFlush}, {peerOdd, 255, peerFlush},
		{peerIOMap, peerEmpty, peerEmpty, peerInternal, peerEnd, 77, peerFlush}, {peerSend, peerFlush}, {peerLong, peerFlush},
		{peerOdd, 16, peerEnd, ctrlShutdown, peerForge, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 0, 0, 0, peerFlush},
		{peerEnd, ctrlShutdown, peerOdd, 16, peerEnd, ctrlShutdown, peerFlush},
		{peerEnd, ctrlDisconnect, peerOdd, 16, peerEnd, ctrlDisconnect, peerFlush},
		{peerData, 4, 0, peerBreak, peerFlush, appRead, 1, 0},
		{appCloseRead, peerFill, peerFlush, peerFill, peerFlush, peerFill, peerFlush, peerFill, peerFlush},
		{appWrite, 9, 9, appCloseWrite, peerFlush, peerAck, 99, peerEnd, ctrlShutdown, peerFlush, peerFlush},
		bytes.Repeat([]byte{peerEmpty}, 80),
		bytes.Repeat([]byte{peerData, 1, 0, peerFlush, appWrite, 1, 0, peerAck, 1}, 150),
		bytes.Repeat([]byte{peerFill, peerFlush, appRead, 255, 255, appRead, 255, 255}, 40),
	} {
		for flags := range byte(4) {
			f.Add(append([]byte{flags, 64, 2, 100}, script...))
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 4 || in[1] == 0 {
			return
		}
		regions := len(n.mrs)
		p := newScriptedPeer(t, n, in[:4])
		p.run(in[4:])
		p.end()
		require.Len(t, n.mrs, regions, "regions")
	})
}
