//go:build linux

package shm

import (
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

func TestMessageRoundTrip(t *testing.T) {
	for _, a := range []string{"127.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:7", "0.0.0.0:0"} {
		w, ok := toAddress(netip.MustParseAddrPort(a))
		require.True(t, ok)
		require.Equal(t, a, w.addrPort().String())
	}
	_, ok := toAddress(netip.MustParseAddrPort("[fe80::1%averylonginterface]:7"))
	require.False(t, ok)
	r := &request{PortSpace: 1, Private: 3, ResponderResources: 4, QP: queuePair{Num: 9, Ring: place{Segment: 3, Offset: 64}}}
	h, body, err := getHeader(message3(msgConnect, 7, r, []byte("abc")))
	require.NoError(t, err)
	require.Equal(t, header{Kind: msgConnect, ID: 7}, h)
	got, private, err := getRequest(body)
	require.NoError(t, err)
	require.Equal(t, r, got)
	require.Equal(t, "abc", string(private))
	require.LessOrEqual(t, len(message3(msgAccept, 7, r, make([]byte, verbs.MaxPrivateREP))), maxMessage)
}

// FuzzLink feeds messages to an end of a link that has a listener: whatever comes, it is taken or breaks the link.
func FuzzLink(f *testing.F) {
	seq := func(ms ...[]byte) (b []byte) {
		for _, m := range ms {
			b = append(b, byte(len(m)), byte(len(m)>>8))
			b = append(b, m...)
		}
		return b
	}
	head := func(k kind, id uint32) []byte {
		var b [headerLen]byte
		return append([]byte{}, putHeader(&b, header{Kind: k, ID: id})...)
	}
	segment := func(id uint32, size uint64) []byte { return appendBody(head(msgSegment, id), size) }
	r := &request{PortSpace: uint16(verbs.PSTCP), QP: queuePair{
		Num: 5, Domain: 1, Ring: place{Segment: 1, Slots: 64, Stride: 64, MaxSGE: 2}, RNRTimer: 12,
	}}
	r.Remote, _ = toAddress(netip.MustParseAddrPort("127.0.0.1:7777"))
	r.Local, _ = toAddress(netip.MustParseAddrPort("127.0.0.1:5"))
	board, ring := segment(0, boardSize), segment(1, ringSegment)
	connect := message3(msgConnect, 1, r, nil)
	f.Add(seq(board, ring, connect, head(msgCancel, 1), connect, head(msgBye, 1)))
	f.Add(seq(board, ring, connect, connect))
	f.Add(seq(board, ring, head(msgNoSegment, 1), connect))
	shared := *r
	shared.QP.Shared, shared.QP.SharedID = place{Segment: 1, Offset: 65536, Slots: 8, Stride: 64, MaxSGE: 1}, 4
	f.Add(seq(board, ring, message3(msgConnect, 2, &shared, []byte{}), message3(msgConnect, 3, &shared, nil), head(msgShared, 4), head(msgBye, 2)))
	for id := range uint32(3) {
		f.Add(seq(board, ring, connect, head(msgWant, id), connect, head(msgWant, id), head(msgNone, id)))
	}
	deliver := question{Seq: 1, Segment: 1, Offset: 4096, Length: 8, Op: uint8(verbs.OpSend), Addr: 1, Compare: 3}
	f.Add(seq(board, ring, connect, deliver.put(head(msgAsk, 1))))
	ask := question{Seq: 1, Segment: 1, Offset: 4096, Length: 100, Op: uint8(verbs.OpWrite), Key: 1 << 17}
	f.Add(seq(board, ring, connect, ask.put(head(msgAsk, 1))))
	f.Add(seq(board, ring, connect, order.AppendUint64(order.AppendUint64(head(msgAnswer, 1), 1), 7)))
	for k := kind(0); k <= lastMessage+1; k++ {
		f.Add(seq(head(k, 0)))
		f.Add(seq(board, head(k, 0), head(k, 1)))
		f.Add(seq(board, ring, connect, head(k, 1)))
	}
	memory := make(map[uint64]int) // descriptors of segments, by size
	f.Fuzz(func(t *testing.T, data []byte) {
		// Nothing here runs on another goroutine: what an input does has to be the same each time.
		p := New()
		l := &listener{p: p, bound: netip.MustParseAddr("127.0.0.1"), queue: verbs.NewRequestQueue(4)}
		require.NoError(t, p.ports.bind(l, verbs.PSTCP, 7777, func(portKey) (func(), error) { return func() {}, nil }))
		d, err := p.newDevice()
		require.NoError(t, err)
		k := d.prepareLink(false, [16]byte{1}, verbs.Cred{UID: os.Geteuid()})
		d.link, d.settled = k, false
		served := uint64(0)
		for len(data) >= 2 {
			n := min(int(data[0])|int(data[1])<<8, len(data)-2)
			m := data[2 : 2+n]
			data = data[2+n:]
			fd := -1
			if h, body, err := getHeader(m); err == nil && h.Kind == msgSegment {
				var size uint64
				if getBody(body, &size) == nil && size > 0 && size <= 64<<20 && size%uint64(pageSize) == 0 {
					fd = segmentFd(t, memory, size)
				}
			}
			k.rx.Lock()
			err := k.handle(m, fd)
			k.rx.Unlock()
			if err != nil {
				break
			}
			// Of those who wait, some are served.
			if requests := l.Stats().Requests; requests%2 == 1 && requests > served {
				served++
				serveOne(t, l, requests%4 == 1)
			}
		}
		k.broken(errMessage)
		require.NoError(t, l.Close())
		d.settle()
		d.release()
		require.True(t, d.freed)
	})
}

// segmentFd is memory that a peer might send.
func segmentFd(t *testing.T, memory map[uint64]int, size uint64) int {
	fd, ok := memory[size]
	if !ok {
		mem, made, err := newSegment(int(size))
		require.NoError(t, err)
		dropSegment(mem)
		if len(memory) == 256 {
			for size, fd := range memory {
				require.NoError(t, unix.Close(fd))
				delete(memory, size)
			}
		}
		fd, memory[size] = made, made
	}
	return fd
}

// serveOne takes a request that waits.
func serveOne(t *testing.T, l verbs.Listener, shared bool) {
	id, err := l.GetRequest(t.Context())
	require.NoError(t, err)
	if shared {
		serveShared(t, id)
		return
	}
	s, err := newSide(id)
	require.NoError(t, err)
	_ = id.Accept(&sideParam)
	_, _ = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}, {Op: verbs.OpWrite, Inline: []byte{1}, RKey: 1 << 16}})
	_, err = s.close()
	require.NoError(t, err)
}

// serveShared is serveOne with a shared receive queue.
func serveShared(t *testing.T, id verbs.CMID) {
	pd, err := id.Device().AllocPD()
	require.NoError(t, err)
	cq, err := id.Device().CreateCQ(&verbs.CQAttr{Depth: 16})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4})
	require.NoError(t, err)
	_, err = srq.PostRecv(make([]verbs.RecvWR, 2))
	require.NoError(t, err)
	qp, err := id.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq})
	require.NoError(t, err)
	_ = id.Accept(&sideParam)
	_, err = cq.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	for _, c := range []interface{ Close() error }{qp, id, srq, cq, pd} {
		require.NoError(t, c.Close())
	}
}

// TestWaitingAtTheEnd: what was not sent when a link ends leaves no descriptor behind, whoever comes to it first.
func TestWaitingAtTheEnd(t *testing.T) {
	_, before := heldAtRest(t)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	var l link
	l.tx.fd, l.tx.flushing = -1, true
	l.tx.waiting = []message{{fd: fd}}
	wait, over := l.flushNow()
	require.False(t, wait)
	require.True(t, over)
	_, after := held(t)
	require.Equal(t, before, after)
}
