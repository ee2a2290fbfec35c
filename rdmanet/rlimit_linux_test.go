package rdmanet_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rdmanet"
)

// noFileRole dials with no file descriptor left.
func noFileRole() error {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return err
	}
	var files []*os.File
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: old.Max}); err != nil {
		return err
	}
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	_, err := rdmanet.Dial("rdma", "127.0.0.1:1")
	var op *net.OpError
	if !errors.As(err, &op) {
		return fmt.Errorf("dial: %w", err)
	}
	fmt.Println(op.Op, errors.Is(err, syscall.EMFILE), op.Temporary(), err)
	for _, f := range files {
		f.Close()
	}
	untilStdinEnds()
	return nil
}
