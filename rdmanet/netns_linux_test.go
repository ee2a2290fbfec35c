package rdmanet_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const ownNetEnv = "RDMANET_TEST_NETWORK"

// inOwnNetwork runs the calling test again, in a process with a network of its own, and tells whether this is
// that process: what the test does to others reaches only those that it starts.
func inOwnNetwork(t *testing.T, limit time.Duration) bool {
	t.Helper()
	if os.Getenv(ownNetEnv) == t.Name() {
		require.NoError(t, loopbackUp())
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+limit.String())
	cmd.Env = append(os.Environ(), ownNetEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		cannot(t, "a network namespace: %v", err)
	}
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return false
}

// cannot skips a test for which the system lacks something. Where everything has to be tested it fails.
func cannot(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this system does not let us have "+format, args...)
	}
	t.Skipf("this system does not let us have "+format, args...)
}

// loopbackUp brings the interface up that a new network has.
func loopbackUp() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil || lo.Flags&net.FlagUp != 0 {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
