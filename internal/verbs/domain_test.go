package verbs_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

var errFull = errors.New("full")

func TestDomain(t *testing.T) {
	page := os.Getpagesize()
	unmapped := 0
	mmap := func(size int) ([]byte, error) { return make([]byte, size), nil }
	munmap := func([]byte) error { unmapped++; return nil }
	d := verbs.Domain{Provider: "some"}
	for _, size := range []int{-page, 0, page - 1, page + 1} {
		_, err := d.NewArena(size, mmap, munmap)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err := d.NewArena(page, func(int) ([]byte, error) { return nil, errFull }, munmap)
	require.ErrorIs(t, err, errFull)
	a, err := d.NewArena(2*page, mmap, munmap)
	require.NoError(t, err)
	b, err := d.NewArena(page, mmap, munmap)
	require.NoError(t, err)

	// A region lies in an arena only as a whole.
	mem := a.Bytes()
	require.Same(t, a, d.ArenaOf(mem))
	require.Same(t, a, d.ArenaOf(mem[2*page-1:]))
	require.Same(t, b, d.ArenaOf(b.Bytes()[:1]))
	require.Nil(t, d.ArenaOf(make([]byte, page)))
	require.ErrorIs(t, a.Close(), verbs.ErrBusy)
	a.Unuse()
	require.ErrorIs(t, a.Close(), verbs.ErrBusy)
	a.Unuse()
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "again")
	require.Equal(t, 1, unmapped)
	require.Nil(t, a.Bytes())
	require.Nil(t, d.ArenaOf(mem), "the address may be another's by now")
	d.ArenaOf(make([]byte, page)).Unuse() // none

	closing := func(err error) func() error { return func() error { return err } }
	require.ErrorIs(t, d.Close(closing(nil)), verbs.ErrBusy)
	b.Unuse()
	require.NoError(t, b.Close())
	require.NoError(t, d.Use())
	require.ErrorIs(t, d.Close(closing(nil)), verbs.ErrBusy)
	d.Unuse()
	require.ErrorIs(t, d.Close(closing(errFull)), errFull)
	require.NoError(t, d.Use(), "it stayed open")
	d.Unuse()
	require.NoError(t, d.Close(closing(nil)))
	require.NoError(t, d.Close(closing(errFull)), "again")
	require.ErrorIs(t, d.Use(), net.ErrClosed)
	_, err = d.NewArena(page, mmap, munmap)
	require.ErrorIs(t, err, net.ErrClosed)
	require.Equal(t, 3, unmapped)
}
