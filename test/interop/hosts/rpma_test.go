package hosts

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestRPMA runs scenarios of package interop/rpma between the hosts: in Go at both ends, and in C on the host with the
// kernel's device.
func TestRPMA(t *testing.T) {
	vmtest.Require(t, vm.Package{Name: "librpma-dev", File: "/usr/include/librpma.h"}, vm.Package{Name: "gcc", File: "/usr/bin/gcc"})
	soft, core := theHosts(t)
	inGo := map[host]string{}
	for _, h := range []host{soft, core} {
		var err error
		inGo[h], err = h.g.Build(t.Context(), programs+"rpma/cmd/rpmapeer")
		require.NoError(t, err)
	}
	sources, err := filepath.Glob("../rpma/c/*.c")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "gcc", append(append([]string{"-O2", "-o", filepath.Join(share, "rpmac")}, sources...), "-lrpma", "-libverbs")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	const inC = "/run/share/rpmac"
	port := 7600
	for _, c := range []struct {
		name           string
		server, client host
		serve, dial    string
	}{
		{"softroce serves rdmacore", soft, core, inGo[soft], inGo[core]},
		{"rdmacore serves softroce", core, soft, inGo[core], inGo[soft]},
		{"softroce serves C", soft, core, inGo[soft], inC},
		{"C serves softroce", core, soft, inC, inGo[soft]},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, scenario := range []string{"read", "write", "flush", "atomic", "send", "srq"} {
				if !long && (c.dial == inC || c.serve == inC) && scenario != "flush" && scenario != "srq" {
					continue // package interop/rpma has them in one guest
				}
				at := c.server.addr("IPv4").String()
				port++
				s := c.server.start(t, c.serve, scenario, "serve", at, strconv.Itoa(port))
				s.Says("listening")
				d := c.client.start(t, c.dial, scenario, "dial", at, strconv.Itoa(port))
				assert.Contains(t, d.Succeeds(), "\ndone\n", scenario)
				assert.Contains(t, s.Succeeds(), "\ndone\n", scenario)
			}
		})
	}
}
