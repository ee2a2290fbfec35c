package rpma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

const (
	clientUse = rpma.ReadDst | rpma.WriteSrc | rpma.SendBuf | rpma.RecvBuf
	serverUse = rpma.ReadSrc | rpma.WriteDst | rpma.FlushVisibility | rpma.SendBuf | rpma.RecvBuf
)

// natives runs a test with both ways of flushes and atomic writes.
func natives(t *testing.T, f func(t *testing.T, native rpma.NativeOps)) {
	t.Run("native", func(t *testing.T) { f(t, rpma.NativeAlways) })
	t.Run("emulated", func(t *testing.T) { f(t, rpma.NativeNever) })
}

func TestDo(t *testing.T) {
	natives(t, func(t *testing.T, native rpma.NativeOps) {
		p, q := newPeer(t), newPeer(t)
		c, s := pair(t, p, q, pairOptions{client: &rpma.ConnConfig{Native: native}})
		require.Equal(t, native == rpma.NativeAlways, c.Native())
		own, far := alloc(t, p, 4096, clientUse), alloc(t, q, 4096, serverUse)
		r := remote(t, far)
		ctx := t.Context()

		copy(own.Bytes(), "written")
		require.NoError(t, c.Do(ctx,
			rpma.Write(r.Slice(100, 7), own.Slice(0, 7)),
			rpma.Flush(r.Slice(100, 7), rpma.Visibility),
			rpma.AtomicWrite(r.Slice(8, 8), [8]byte{1, 2, 3, 4, 5, 6, 7, 8}),
			rpma.Flush(r.Slice(4095, 1), rpma.Visibility),
		))
		assert.Equal(t, "written", string(far.Bytes()[100:107]))
		assert.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, far.Bytes()[8:16])
		require.NoError(t, c.Do(ctx, rpma.Read(own.Slice(1000, 20), r.Slice(95, 20))))
		assert.Equal(t, "\x00\x00\x00\x00\x00written\x00\x00\x00\x00\x00\x00\x00\x00", string(own.Bytes()[1000:1020]))

		msg := alloc(t, q, 64, rpma.RecvBuf)
		require.NoError(t, s.PostRecv(msg.Slice(0, 64), 77))
		copy(own.Bytes(), "hello")
		require.NoError(t, c.Do(ctx, rpma.SendImm(own.Slice(0, 5), 0x01020304)))
		got := next(t, s.CQ())
		assert.Equal(t, rpma.Completion{ID: 77, Op: rpma.OpRecv, Bytes: 5, Imm: 0x01020304, HasImm: true, QPNum: s.QPNum()}, public(got))
		assert.Equal(t, "hello", string(msg.Bytes()[:5]))
	})
}

// public is a completion without what this package keeps for itself.
func public(c rpma.Completion) rpma.Completion {
	return rpma.Completion{ID: c.ID, Status: c.Status, Op: c.Op, Bytes: c.Bytes, Imm: c.Imm, HasImm: c.HasImm, QPNum: c.QPNum}
}
