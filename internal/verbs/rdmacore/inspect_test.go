package rdmacore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInspect(t *testing.T) {
	t.Run("no device", func(t *testing.T) {
		in := New(&Config{Root: fakeRoot(t, nil)}).Inspect()
		require.Empty(t, in.Devices)
		require.NoError(t, in.Manager, "nobody needs it")
		require.ErrorContains(t, in.None, "modprobe rdma_rxe")
	})
	files := map[string]string{"sys/module/ib_uverbs/version": "1", "sys/module/ext4/version": "1"}
	for name, text := range twoDevices {
		files[name] = text
	}
	t.Run("nothing in /dev", func(t *testing.T) {
		p := New(&Config{Root: fakeRoot(t, files)})
		libs := &Fault{"no such file", "apt-get install it", nil}
		p.whyNot = func() error { return libs }
		in := p.Inspect()
		require.NoError(t, in.None)
		require.NoError(t, in.Build)
		require.Equal(t, libs, in.Libraries)
		assert.Equal(t, []string{"iw0", "rxe0"}, in.Kernel)
		assert.Equal(t, []string{"ib_uverbs"}, in.Modules)
		var f *Fault
		require.ErrorAs(t, in.Manager, &f)
		assert.Equal(t, "/dev/infiniband/rdma_cm does not exist", f.What)
		assert.Contains(t, f.Fix, "modprobe rdma_ucm")
		require.ErrorIs(t, in.Manager, fs.ErrNotExist)
		require.Len(t, in.Devices, 2)
		require.ErrorAs(t, in.Devices[0].Node, &f)
		assert.Equal(t, "modprobe -a ib_uverbs rdma_ucm", f.Fix)
		require.ErrorAs(t, in.Devices[1].Node, &f)
		assert.Equal(t, "/dev/infiniband/uverbs0 does not exist", f.What)
		assert.Equal(t, "eth1", in.Devices[1].Ports[0].Interface)
		assert.NoError(t, in.Devices[1].Driver, "it is not known")
	})
	t.Run("build", func(t *testing.T) {
		p := New(&Config{Root: fakeRoot(t, files)})
		p.whyNot = func() error { return notBuilt{&Fault{"built without", "build with", nil}} }
		in := p.Inspect()
		require.NoError(t, in.Libraries)
		var f *Fault
		require.ErrorAs(t, in.Build, &f)
		assert.Equal(t, "build with", f.Fix)
		assert.ErrorAs(t, in.Devices[1].Unusable, &f, "what the device lacks is the same")
	})
	t.Run("libibverbs does not know the device", func(t *testing.T) {
		p := New(&Config{})
		if p.whyNot() != nil {
			t.Skip("libibverbs is not here: ", p.whyNot())
		}
		root := fakeRoot(t, files)
		require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/infiniband"), 0o777))
		for _, n := range []string{"uverbs0", "rdma_cm"} {
			require.NoError(t, os.WriteFile(filepath.Join(root, "dev/infiniband", n), nil, 0o666))
		}
		in := New(&Config{Root: root}).Inspect()
		require.NoError(t, in.Manager)
		require.NoError(t, in.Devices[1].Node)
		require.Error(t, in.Devices[1].Driver, "it is not a device of this host")
		assert.Len(t, in.Loaded, 2, "%v", in.Loaded)
	})
}

// The limit of locked memory does not bind who has the capability.
func TestMemlockState(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux only")
	}
	limit, limited := memlockLimit()
	for caps, binds := range map[string]bool{"0000000000000000": true, "0000000000003fff": true, "0000000000004000": false, "000001ffffffffff": false, "junk": true} {
		h := host{root: fakeRoot(t, map[string]string{"proc/self/status": "Name:\tx\nVmPin:\t    2048 kB\nCapEff:\t" + caps + "\n"})}
		m := h.memlockState()
		assert.Equal(t, limited && binds, m.Limited, caps)
		assert.Equal(t, limit, m.Limit)
		assert.Equal(t, uint64(2<<20), m.Used)
	}
}

func TestFault(t *testing.T) {
	cause := errors.New("cause")
	assert.EqualError(t, &Fault{"what", "fix", cause}, "what: fix: cause")
	assert.EqualError(t, &Fault{"what", "", nil}, "what")
	assert.EqualError(t, notBuilt{&Fault{"what", "fix", nil}}, "what: fix")
	assert.ErrorIs(t, noDevice(&Fault{"what", "fix", cause}), cause)
	var f *Fault
	assert.ErrorAs(t, noDevice(notBuilt{&Fault{"what", "fix", cause}}), &f)
}
