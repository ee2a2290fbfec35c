package verbs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOverflowUser(t *testing.T) {
	for _, c := range []struct {
		ids, number string
		uid         uint32
		some        bool
	}{
		{"         0          0 4294967295\n", "65534\n", 0, false},
		{"         0       1000          1\n", "65534\n", 65534, true},
		{"0 100000 65536\n", "65534\n", 65534, true}, // a user has the number, and so have all without one
		{"", "65534\n", 65534, true},
		{"0 0 10\n20 20 10\n", "99\n", 99, true},
	} {
		uid, some := overflow(c.ids, c.number)
		require.Equal(t, c.some, some, "%q", c.ids)
		require.Equal(t, c.uid, uid, "%q", c.ids)
	}
}

// TestSameUser: in a user namespace where nobody has a number all users look the same, this one too.
func TestSameUser(t *testing.T) {
	const env = "VERBS_TEST_USER"
	if os.Getenv(env) != "" {
		fmt.Printf("uid %d, itself %v, root %v\n", os.Geteuid(), SameUser(uint32(os.Geteuid())), SameUser(0))
		os.Exit(0)
	}
	require.True(t, SameUser(0))
	require.True(t, SameUser(uint32(os.Geteuid())))
	require.False(t, SameUser(uint32(os.Geteuid())+1))
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSameUser$")
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "uid 65534, itself false, root true", strings.TrimSpace(string(out)))
}
