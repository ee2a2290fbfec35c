package vm_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestNewcomer plays a machine without QEMU, to a user who is not root: what is to be installed is said, with the command, tests
// skip, and with CI=true they fail. The guest is that machine.
func TestNewcomer(t *testing.T) {
	g := vmtest.Shared(t)
	check, err := g.Build(t.Context(), "github.com/go-rdma/rdma/test/vm/cmd/vm")
	require.NoError(t, err)
	tests, err := g.BuildTest(t.Context(), "github.com/go-rdma/rdma/test/loss")
	require.NoError(t, err)
	_, err = g.Script(t.Context(), `
mkdir /run/away
mv /usr/bin/qemu-system-x86_64 /usr/bin/tcpdump /run/away
mkdir -m 777 /tmp/newcomer
cp `+check+` /tmp/newcomer/check
cp `+tests+` /tmp/newcomer/tests`)
	require.NoError(t, err)
	defer func() {
		_, err := g.Script(t.Context(), "mv /run/away/* /usr/bin; rmdir /run/away")
		require.NoError(t, err)
	}()
	run := func(env string, args ...string) (code int, out string) {
		c := g.Command(t.Context(), "setpriv", append([]string{
			"--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp/newcomer", env,
		}, args...)...)
		b, err := c.CombinedOutput()
		if exit := new(vm.ExitError); err != nil {
			require.ErrorAs(t, err, &exit, "%s", b)
			code = exit.Code
		}
		return code, string(b)
	}
	const why = "vm: no guest on this machine: it lacks Debian's packages qemu-system-x86, tcpdump; " +
		"as root: apt-get install -y --no-install-recommends qemu-system-x86 tcpdump"

	code, out := run("CI=", "/tmp/newcomer/check", "-check")
	assert.Equal(t, 125, code)
	assert.Equal(t, why+"\n", out)

	code, out = run("CI=", "/tmp/newcomer/tests", "-test.v", "-test.run=^TestAgainstSoftRoCE$")
	assert.Equal(t, 0, code, out)
	assert.Contains(t, out, "--- SKIP: TestAgainstSoftRoCE")
	assert.Contains(t, out, why)

	code, out = run("CI=true", "/tmp/newcomer/tests", "-test.run=^TestAgainstSoftRoCE$")
	assert.Equal(t, 1, code, out)
	assert.Contains(t, out, "--- FAIL: TestAgainstSoftRoCE")
	assert.Contains(t, out, why)
}
