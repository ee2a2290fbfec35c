package main

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// numbered makes datagrams of one sender.
func numbered(from *rdmanet.Addr, numbers ...uint64) (ms []rdmanet.Message) {
	for _, n := range numbers {
		b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, mark), n)
		ms = append(ms, rdmanet.Message{Buffers: [][]byte{b}, N: len(b), Addr: from})
	}
	return ms
}

func TestReport(t *testing.T) {
	a := &rdmanet.Addr{IP: netip.MustParseAddr("10.0.0.1"), UD: rdmanet.UDAddr{QPN: 1}}
	b := &rdmanet.Addr{IP: netip.MustParseAddr("10.0.0.2"), UD: rdmanet.UDAddr{QPN: 2}}
	again := *b
	r := newReceiver()
	r.take(numbered(a, 3, 4, 6, 7, 12), 16) // 5, 8, 9, 10, 11
	r.take(numbered(b, 0, 1), 16)
	r.take(numbered(&again, 1, 0), 16) // another pointer, and numbers that were there
	s := r.report(7)
	require.Contains(t, s, "received 9 messages of 144 bytes")
	require.Contains(t, s, ", 7 dropped for want of room\n")
	require.Contains(t, s, "mckey: from 10.0.0.1:qp0x000001 5 messages, 5 lost (50.00 %)\n")
	require.Contains(t, s, "mckey: from 10.0.0.2:qp0x000002 4 messages, 2 more than there are numbers\n")
}

// Whatever members of the group send, there is a report.
func FuzzReport(f *testing.F) {
	f.Add([]byte("mckey-go\x00\x00\x00\x00\x00\x00\x00\x01"), []byte("mckey-go\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add([]byte("mckey-go\x00\x00\x00\x00\x00\x00\x00"), []byte{})
	f.Fuzz(func(t *testing.T, x, y []byte) {
		from := &rdmanet.Addr{IP: netip.MustParseAddr("10.0.0.1")}
		r := newReceiver()
		r.take([]rdmanet.Message{{Buffers: [][]byte{x}, N: len(x), Addr: from}, {Buffers: [][]byte{y}, N: len(y), Addr: from}}, 100)
		if r.messages > 0 {
			require.Contains(t, r.report(0), "mckey: from 10.0.0.1:0 ")
		}
	})
}
