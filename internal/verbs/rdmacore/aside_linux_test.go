//go:build cgo

package rdmacore

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestDrainOutlivesShortage: lack of memory does not end a drainer, another failure does.
func TestDrainOutlivesShortage(t *testing.T) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	w := os.NewFile(uintptr(p[1]), "pipe")
	defer w.Close()
	_, err := w.WriteString("ab")
	require.NoError(t, err)
	short, broken := 2, errors.New("broken")
	taken, failed := make(chan byte, 4), make(chan error, 1)
	var got [1]byte
	d, err := drain(p[0], "pipe", func() error {
		if short > 0 {
			short--
			return syscall.ENOMEM
		}
		n, err := unix.Read(p[0], got[:])
		if err == nil && n == 0 {
			return broken
		}
		return err
	}, func() { taken <- got[0] }, func(err error) { failed <- err })
	require.NoError(t, err)
	require.Equal(t, byte('a'), <-taken)
	require.Equal(t, byte('b'), <-taken)
	require.NoError(t, w.Close())
	require.Equal(t, broken, <-failed)
	d.wait()
	d.close()
}

// TestDrainEndsDuringShortage: closing does not wait for memory.
func TestDrainEndsDuringShortage(t *testing.T) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC))
	defer unix.Close(p[1])
	d, err := drain(p[0], "pipe", func() error { return syscall.ENOMEM }, func() { t.Error("nothing was taken") }, nil)
	require.NoError(t, err)
	time.Sleep(shortageRetry / 4)
	d.close()
	d.wait()
}

// TestWillEstablish: a connection of which the kernel knows already is waited for as one that it is told of, so that
// its peer hears of its end.
func TestWillEstablish(t *testing.T) {
	require.True(t, willEstablish(nil))
	require.True(t, willEstablish(syscall.EISCONN))
	require.False(t, willEstablish(syscall.EINVAL))
	require.False(t, willEstablish(syscall.ENODEV))
}

// TestQueueFailure: the first failure stays, and only who is told of it by the device calls Notify.
func TestQueueFailure(t *testing.T) {
	d := &device{name: "fake0"}
	notes := 0
	c := &cq{dev: d, h: new(coreCQ), onNote: func() { notes++ }}
	require.True(t, c.setFailed(d.goneError()))
	require.Zero(t, notes)
	c.fail(syscall.ENOSPC)
	require.Zero(t, notes, "it had failed before")
	d.gone.Store(true)
	_, err := c.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorIs(t, c.Arm(), syscall.ENODEV)

	c = &cq{dev: d, h: new(coreCQ), onNote: func() { notes++ }}
	c.fail(syscall.ENOSPC)
	c.fail(syscall.ENOSPC)
	require.Equal(t, 1, notes)
}

// TestDeviceStaysOpen: a device that nobody needs is closed after a while, unless somebody comes.
func TestDeviceStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(&Config{})
		d := &device{c: &p.core, name: "fake0"}
		p.core.open[d.name] = d
		d.refs.Store(1)
		d.release()
		time.Sleep(idleTime / 2)
		require.False(t, d.tryRetain(), "it is closed to all but those who ask for it by name")
		got, err := p.core.use(d.name)
		require.NoError(t, err)
		require.Same(t, d, got)
		time.Sleep(idleTime)
		require.True(t, d.tryRetain())
		d.release()
		time.Sleep(idleTime)
		require.Same(t, d, p.core.open[d.name], "somebody holds it")
		require.EqualValues(t, 1, d.refs.Load())
	})
}
