package interop

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// proc is a program that runs in the guest.
type proc struct {
	*vmtest.Process
	t      *testing.T
	device string // of a Go program
}

// c starts a program in the initial namespace, where the RDMA device is. Its output comes by lines.
func (w *world) c(t *testing.T, env []string, args ...string) *proc {
	t.Helper()
	return w.start(t, "", env, append([]string{"stdbuf", "-oL"}, args...))
}

// goAt starts one of this directory's programs at the Go end of a site.
func (w *world) goAt(t *testing.T, s site, args ...string) *proc {
	t.Helper()
	args[0] = filepath.Join(w.bin, args[0])
	p := w.start(t, s.netns, []string{"RDMANET_DEVICE=" + w.device}, args)
	p.device = w.device
	return p
}

func (w *world) start(t *testing.T, netns string, env, args []string) *proc {
	t.Helper()
	cmd := w.g.Command(t.Context(), args[0], args[1:]...).In(netns)
	cmd.Env = env
	return &proc{Process: vmtest.Run(t, cmd), t: t}
}

// providerOf finds the provider in statistics as JSON.
var providerOf = regexp.MustCompile(`"Provider":"(\w+)"`)

// Succeeds is the process's, and looks whether statistics that it printed are of the device that it was to use.
func (p *proc) Succeeds() string {
	p.t.Helper()
	out := p.Process.Succeeds()
	for _, m := range providerOf.FindAllStringSubmatch(out, -1) {
		require.Equal(p.t, p.device, m[1], out)
	}
	return out
}

// endsSince waits for the end of the process, with a failure, after the other was killed.
func (p *proc) endsSince(t *testing.T, killed time.Time, within time.Duration) string {
	t.Helper()
	out := p.Fails()
	took := time.Since(killed)
	t.Logf("%s: ended %.1f s after the other", p.Cmd, took.Seconds())
	require.Less(t, took, within)
	return out
}
