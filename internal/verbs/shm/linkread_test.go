//go:build linux

package shm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// socketLink is an end of a link that nobody reads but the test, and the other end of its socket.
func socketLink(t *testing.T) (l *link, far int) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	d, err := New().newDevice()
	require.NoError(t, err)
	l = d.prepareLink(false, [16]byte{1}, verbs.Cred{UID: os.Geteuid()})
	l.f = os.NewFile(uintptr(pair[0]), "link")
	l.rc, err = l.f.SyscallConn()
	require.NoError(t, err)
	d.link = l
	t.Cleanup(func() {
		l.broken(errMessage)
		require.NoError(t, l.f.Close())
		require.NoError(t, closeFd(pair[1]))
		d.release()
		require.True(t, d.freed)
	})
	return l, pair[1]
}

// board gives the link a board of the peer's.
func giveBoard(t *testing.T, l *link, far int) {
	mem, fd, err := newSegment(boardSize)
	require.NoError(t, err)
	dropSegment(mem)
	var b [headerLen]byte
	require.NoError(t, sendMessage(far, appendBody(putHeader(&b, header{Kind: msgSegment}), uint64(boardSize)), fd))
	require.NoError(t, closeFd(fd))
	more, err := l.next(int(l.f.Fd()))
	require.NoError(t, err)
	require.True(t, more)
}

// TestPumpBounded: a consumer's call comes back, however fast the peer sends.
func TestPumpBounded(t *testing.T) {
	l, far := socketLink(t)
	giveBoard(t, l, far)
	var b [headerLen]byte
	for range 3 * mostPumped {
		require.NoError(t, sendMessage(far, putHeader(&b, header{Kind: msgPing, Flag: 1}), -1))
	}
	before := l.heard()
	l.pump()
	require.LessOrEqual(t, l.heard()-before, uint64(mostPumped))
}

// TestStrangeDescriptors: what came with a message that is to have nothing, or too much, is closed, and the link ends.
func TestStrangeDescriptors(t *testing.T) {
	heldAtRest(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	named, err := unix.Open(fifo, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, closeFd(named)) }()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	for _, c := range []struct {
		name  string
		kind  kind
		fds   []int
		valid bool
	}{
		{"Pipe", msgPorch, []int{pipe[1]}, true},
		{"NamedPipe", msgPorch, []int{named}, false}, // of whatever file system
		{"Two", msgPorch, []int{pipe[1], named}, false},
		{"Ping", msgPing, []int{named}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, far := socketLink(t)
			giveBoard(t, l, far)
			defer l.closePorch()
			var b [headerLen]byte
			_, now := held(t)
			err := unix.Sendmsg(far, putHeader(&b, header{Kind: c.kind}), unix.UnixRights(c.fds...), nil, 0)
			require.NoError(t, err)
			_, err = l.next(int(l.f.Fd()))
			if c.valid {
				require.NoError(t, err)
				require.NotEqual(t, -1, l.knocker.fd)
				return
			}
			require.Error(t, err)
			require.Equal(t, -1, l.knocker.fd)
			require.Eventually(t, func() bool { _, n := held(t); return n == now }, 5*time.Second, time.Millisecond)
		})
	}
}
