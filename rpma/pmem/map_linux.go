package pmem

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, off int64, n int) (*Mapping, error) {
	if off < 0 || n <= 0 || off > math.MaxInt64-int64(n) {
		return nil, syscall.EINVAL
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		if size := info.Size(); size < off+int64(n) {
			return nil, fmt.Errorf("the file has %d bytes, Truncate makes it longer: %w", size, syscall.EINVAL)
		}
	case mode&fs.ModeCharDevice == 0: // device-dax does not tell its size
		return nil, fmt.Errorf("neither a file nor a device-dax: %w", syscall.ENODEV)
	}
	head := int(off & int64(pageSize-1))
	if n > math.MaxInt-head {
		return nil, syscall.EINVAL
	}
	m := &Mapping{name: f.Name(), head: head, dax: true}
	// With MAP_SHARED instead of MAP_SHARED_VALIDATE any file would seem to take MAP_SYNC.
	m.whole, err = mmap(f, off-int64(head), n+head, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) { // EINVAL: kernels before 4.15
		m.dax = false
		m.whole, err = mmap(f, off-int64(head), n+head, unix.MAP_SHARED)
	}
	switch {
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("the file must be open for reading and writing (os.O_RDWR): %w", err)
	case errors.Is(err, unix.EINVAL) && !info.Mode().IsRegular():
		return nil, fmt.Errorf("offset and length must be multiples of the device's alignment (/sys/bus/dax/devices/*/align): %w", err)
	case err != nil:
		return nil, err
	}
	m.data = m.whole[head:len(m.whole):len(m.whole)]
	return m, nil
}

// mmap maps through SyscallConn, so that a file that others close meanwhile is not another one, and stays as it is
// (Fd would make it block).
func mmap(f *os.File, off int64, n, flags int) (b []byte, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := c.Control(func(fd uintptr) {
		b, err = unix.Mmap(int(fd), off, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	}); e != nil {
		return nil, e
	}
	return b, os.NewSyscallError("mmap", err)
}

func unmap(b []byte) error { return os.NewSyscallError("munmap", unix.Munmap(b)) }

// msync writes pages; b begins with one.
func msync(b []byte) error {
	for {
		err := unix.Msync(b, unix.MS_SYNC)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("msync", err)
		}
	}
}
