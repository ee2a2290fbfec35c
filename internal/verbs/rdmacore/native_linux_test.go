//go:build cgo

package rdmacore

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestCheckNative: FLUSH and ATOMIC WRITE are for devices that have them, and what makes no sense does not reach those.
func TestCheckNative(t *testing.T) {
	d := &device{name: "fake0", maxMsg: 1 << 20}
	q := &qp{dev: d, typ: verbs.RC, readDepth: 1}
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFlush, FlushType: verbs.FlushGlobal}), errors.ErrUnsupported)
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpAtomicWrite, Inline: make([]byte, 8)}), errors.ErrUnsupported)
	d.attr.native = true
	both := verbs.FlushGlobal | verbs.FlushPersistent
	for what, c := range map[string]struct {
		wr verbs.SendWR
		ok bool
	}{
		"range":         {verbs.SendWR{Op: verbs.OpFlush, FlushType: verbs.FlushGlobal, FlushLength: 10}, true},
		"region":        {verbs.SendWR{Op: verbs.OpFlush, FlushType: both, FlushLevel: verbs.FlushMR}, true},
		"no type":       {verbs.SendWR{Op: verbs.OpFlush}, false},
		"other type":    {verbs.SendWR{Op: verbs.OpFlush, FlushType: both | verbs.RemoteRead}, false},
		"other level":   {verbs.SendWR{Op: verbs.OpFlush, FlushType: both, FlushLevel: 2}, false},
		"flush of data": {verbs.SendWR{Op: verbs.OpFlush, FlushType: both, Inline: make([]byte, 8)}, false},
		"inline":        {verbs.SendWR{Op: verbs.OpAtomicWrite, Inline: make([]byte, 8)}, true},
		"gathered":      {verbs.SendWR{Op: verbs.OpAtomicWrite, SGL: []verbs.SGE{{Length: 3}, {Length: 5}}}, true},
		"short":         {verbs.SendWR{Op: verbs.OpAtomicWrite, Inline: make([]byte, 7)}, false},
		"gathered long": {verbs.SendWR{Op: verbs.OpAtomicWrite, SGL: []verbs.SGE{{Length: 1 << 31}, {Length: 1<<31 + 8}}}, false},
	} {
		if err := q.checkSend(&c.wr); c.ok {
			require.NoError(t, err, what)
		} else {
			require.ErrorIs(t, err, syscall.EINVAL, what)
		}
	}
	q.readDepth = 0
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFlush, FlushType: both}), syscall.EINVAL, "they count as READs")
	q.typ = verbs.UD
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFlush, FlushType: both}), errors.ErrUnsupported)
}

// TestAtomicValue: the library takes an ATOMIC WRITE's bytes when it is posted, from registered memory alone.
func TestAtomicValue(t *testing.T) {
	p := &pd{mrs: map[uint32]*mr{7: {addr: 0x1000, lkey: 7, mem: []byte("0123456789")}}}
	q := &qp{pd: p}
	var b [atomicLen]byte
	require.NoError(t, q.atomicValue(b[:], &verbs.SendWR{SGL: []verbs.SGE{{Addr: 0x1007, Length: 3, LKey: 7}, {Addr: 0x1000, Length: 5, LKey: 7}}}))
	require.Equal(t, "78901234", string(b[:]))
	for _, s := range []verbs.SGE{{Addr: 0x1003, Length: 8, LKey: 7}, {Addr: 0xfff, Length: 8, LKey: 7}, {Addr: 0x1000, Length: 8, LKey: 8}} {
		require.ErrorIs(t, q.atomicValue(b[:], &verbs.SendWR{SGL: []verbs.SGE{s}}), syscall.EINVAL)
	}
}

// TestNativePosts: in one crossing, requests of both kinds reach a driver in order, with what is theirs; of a run of those that go
// together all are taken or none.
func TestNativePosts(t *testing.T) {
	needHeaders(t)
	prog := filepath.Join(t.TempDir(), "native")
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-Wall", "-fsanitize=address,undefined", "-o", prog, "testdata/native.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	const (
		first  = "post 1:0/11 2:2/3'abc'\n"
		second = "start 3:atomic/1 rkey a at 16 'value678' 4:flush/2 rkey b at 32 len 100 type 2 level 0"
	)
	for room, want := range map[string]string{
		"9": first + second + "\npost 5:2/2'de'\nstart 6:flush/0 rkey c at 0 len 0 type 3 level 1\npost 7:4/22\n7 posted, no error\n",
		"1": "post 1:0/11 full\n1 posted, Cannot allocate memory\n",
		"3": first + second + " full\n2 posted, Cannot allocate memory\n",
	} {
		out, err := exec.Command(prog, room).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want, string(out))
	}
}

// needHeaders asks for a build with the headers of libibverbs and librdmacm.
func needHeaders(t *testing.T) {
	t.Helper()
	if why, _ := coreLoad(); why == noHeaders {
		if os.Getenv("CI") == "true" {
			t.Fatal("built without the libraries' headers: .ci/run installs them")
		}
		t.Skip("built without the libraries' headers")
	}
}
