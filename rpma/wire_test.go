package rpma_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

// measured is the descriptor of C's librpma for 4096 bytes at 0x7ff3d5e79000, key 0x9833, usage 0xf9.
const measured = "0090e7d5f37f0000" + "0010000000000000" + "33980000" + "f9"

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestRemoteDescriptor(t *testing.T) {
	b := unhex(t, measured)
	require.Len(t, b, rpma.DescriptorSize)
	for pad := range 8 { // wherever it begins in memory, whatever is behind it
		at := append(make([]byte, pad), b...)
		r, err := rpma.ParseRemoteMR(append(at, make([]byte, 35)...)[pad:])
		require.NoError(t, err)
		assert.Equal(t, uint64(4096), r.Size())
		assert.Equal(t, rpma.Usage(0xf9), r.Usage())
		out, err := r.MarshalBinary()
		require.NoError(t, err)
		assert.Equal(t, b, out)
		out, err = r.AppendBinary([]byte{1})
		require.NoError(t, err)
		assert.Equal(t, append([]byte{1}, b...), out)
	}
	var r rpma.RemoteMR
	require.NoError(t, r.UnmarshalBinary(b))
	same, err := rpma.ParseRemoteMR(b)
	require.NoError(t, err)
	require.Equal(t, same, r)
	require.Contains(t, map[rpma.RemoteMR]bool{same: true}, r, "comparable")

	change := func(at int, v ...byte) []byte {
		c := append([]byte(nil), b...)
		copy(c[at:], v)
		return c
	}
	all := []byte{255, 255, 255, 255, 255, 255, 255, 255}
	for name, bad := range map[string][]byte{
		"nothing": nil, "a byte too short": b[:20], "no use": change(20, 0),
		"no memory": change(8, make([]byte, 8)...), "beyond all addresses": change(8, all...),
		"one byte beyond": change(0, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-4094)...),
	} {
		_, err := rpma.ParseRemoteMR(bad)
		require.ErrorIs(t, err, rpma.ErrInvalid, name)
		require.ErrorIs(t, err, fs.ErrInvalid, name)
		require.Error(t, r.UnmarshalBinary(bad))
		require.Equal(t, same, r, "unchanged")
	}
	_, err = rpma.ParseRemoteMR(change(0, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-4095)...))
	require.NoError(t, err, "up to the last address")
}

func TestFlushTypesOfRegions(t *testing.T) {
	b := unhex(t, measured)
	for u := 1; u < 256; u++ {
		b[20] = byte(u)
		r, err := rpma.ParseRemoteMR(b)
		require.NoError(t, err)
		assert.Equal(t, u&0x10 != 0, r.CanFlush(rpma.Visibility))
		assert.Equal(t, u&0x20 != 0, r.CanFlush(rpma.Persistent))
		assert.False(t, r.CanFlush(7))
	}
}

func TestPeerConfigDescriptor(t *testing.T) {
	for _, on := range []bool{false, true} {
		b, err := rpma.PeerConfig{DirectWriteToPMem: on}.MarshalBinary()
		require.NoError(t, err)
		want := []byte{0}
		if on {
			want = []byte{1}
		}
		require.Equal(t, want, b)
		require.Len(t, b, rpma.PeerConfigSize)
		c := rpma.PeerConfig{DirectWriteToPMem: !on}
		require.NoError(t, c.UnmarshalBinary(append(b, 9, 9)))
		require.Equal(t, on, c.DirectWriteToPMem)
	}
	var c rpma.PeerConfig
	require.NoError(t, c.UnmarshalBinary([]byte{2}))
	require.True(t, c.DirectWriteToPMem, "anything but 0, as in C")
	require.ErrorIs(t, c.UnmarshalBinary(nil), rpma.ErrInvalid)
	require.True(t, c.DirectWriteToPMem)
}

// TestNumbers are librpma's and the verbs'.
func TestNumbers(t *testing.T) {
	for code, want := range map[rpma.Code]int{
		rpma.ErrUnknown: -100000, rpma.ErrNotSupported: -100001, rpma.ErrProvider: -100002, rpma.ErrNoMemory: -100003,
		rpma.ErrInvalid: -100004, rpma.ErrNoCompletion: -100005, rpma.ErrNoEvent: -100006, rpma.ErrAgain: -100007,
		rpma.ErrSharedChannel: -100008, rpma.ErrNotSharedChannel: -100009,
	} {
		assert.Equal(t, want, int(code))
		assert.NotContains(t, code.Error(), "rpma code")
	}
	assert.Equal(t, "rpma code -100010", rpma.Code(-100010).Error())
	assert.Equal(t, "rpma code 0", rpma.Code(0).Error())
	for i, e := range []rpma.Event{rpma.EventUndefined, rpma.EventEstablished, rpma.EventClosed, rpma.EventLost, rpma.EventRejected, rpma.EventUnreachable} {
		assert.Equal(t, i-1, int(e))
		assert.NotContains(t, e.String(), "Event(")
	}
	assert.Equal(t, "Event(9)", rpma.Event(9).String())
	for i, u := range []rpma.Usage{rpma.ReadSrc, rpma.ReadDst, rpma.WriteSrc, rpma.WriteDst, rpma.FlushVisibility, rpma.FlushPersistent, rpma.SendBuf, rpma.RecvBuf} {
		assert.Equal(t, 1<<i, int(u))
	}
	assert.Equal(t, "ReadSrc|RecvBuf", (rpma.ReadSrc | rpma.RecvBuf).String())
	assert.Equal(t, 0, int(rpma.Persistent))
	assert.Equal(t, 1, int(rpma.Visibility))
	for op, want := range map[rpma.OpCode]int{
		rpma.OpSend: 0, rpma.OpWrite: 1, rpma.OpRead: 2, rpma.OpFlush: 8, rpma.OpAtomicWrite: 9, rpma.OpRecv: 128, rpma.OpRecvWithImm: 129,
	} {
		assert.Equal(t, want, int(op))
		assert.NotContains(t, op.String(), "OpCode(")
	}
	assert.Equal(t, "OpCode(3)", rpma.OpCode(3).String())
	assert.Equal(t, "remote access error", rpma.StatusRemoteAccess.String())
	assert.Equal(t, "status 99", rpma.Status(99).String())
	assert.Equal(t, "status -1", rpma.Status(-1).String())
	assert.Equal(t, 0, int(rpma.AdvicePrefetch))
	assert.Equal(t, 2, int(rpma.AdvicePrefetchNoFault))
}

func TestErrors(t *testing.T) {
	err := error(&rpma.Error{Op: "write", Code: rpma.ErrProvider, Err: &rpma.CompletionError{Status: rpma.StatusRetryExceeded, VendorErr: 5}})
	assert.ErrorIs(t, err, rpma.ErrProvider)
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	assert.NotErrorIs(t, err, rpma.ErrInvalid)
	assert.EqualError(t, err, "rpma: write: transport retry counter exceeded: the peer does not answer (vendor error 0x5)")
	var ce *rpma.CompletionError
	assert.ErrorAs(t, err, &ce)
	assert.ErrorIs(t, &rpma.Error{Code: rpma.ErrNotSupported}, errors.ErrUnsupported)
	assert.EqualError(t, &rpma.Error{Code: rpma.ErrNotSupported}, "rpma: not supported")
	assert.ErrorIs(t, rpma.ErrQueueFull, rpma.ErrProvider)
	assert.ErrorIs(t, rpma.ErrQueueFull, syscall.ENOMEM)
	for s, want := range map[rpma.Status]syscall.Errno{
		rpma.StatusFlushed: syscall.ECONNRESET, rpma.StatusRNRExceeded: syscall.ETIMEDOUT,
		rpma.StatusRemoteAccess: syscall.EACCES, rpma.StatusLocalLength: syscall.EMSGSIZE,
	} {
		assert.ErrorIs(t, &rpma.CompletionError{Status: s}, want)
	}
	assert.NotErrorIs(t, &rpma.CompletionError{Status: rpma.StatusGeneral}, syscall.ETIMEDOUT)
	rej := &rpma.RejectError{Reason: 28}
	assert.ErrorIs(t, rej, syscall.ECONNREFUSED)
	assert.Equal(t, rpma.EventRejected, rpma.EventOf(&rpma.Error{Err: rej}))
	assert.Equal(t, rpma.EventUnreachable, rpma.EventOf(&rpma.Error{Err: syscall.ETIMEDOUT}))
	assert.Equal(t, rpma.EventEstablished, rpma.EventOf(nil))
	assert.Equal(t, rpma.EventUndefined, rpma.EventOf(errors.New("other")))
}

func FuzzParseRemoteMR(f *testing.F) {
	f.Add(unhex(f, measured))
	f.Add(make([]byte, 21))
	f.Add(append(unhex(f, measured), make([]byte, 35)...))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := rpma.ParseRemoteMR(b)
		if err != nil {
			require.Zero(t, r)
			return
		}
		out, err := r.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, b[:rpma.DescriptorSize], out)
		addr := binary.LittleEndian.Uint64(b)
		require.GreaterOrEqual(t, addr+r.Size()-1, addr, "no end before the beginning")
		require.NotZero(t, r.Usage())
	})
}

func FuzzPeerConfig(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1})
	f.Add([]byte{0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c rpma.PeerConfig
		err := c.UnmarshalBinary(b)
		require.Equal(t, len(b) == 0, err != nil)
		require.Equal(t, len(b) > 0 && b[0] != 0, c.DirectWriteToPMem)
	})
}
