package kernel

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// record records what crosses softroce's interface. The function that it returns ends that and has tshark print some
// fields of each packet that the filter lets through.
func (w *world) record(t *testing.T) (stop func(filter string, fields ...string) [][]string) {
	t.Helper()
	vmtest.Require(t, vm.Package{Name: "tshark", File: "/usr/bin/tshark"})
	// Packets are to be seen as they are on a wire, not as the groups that a veth takes.
	gso := func(segments string) {
		t.Helper()
		out, err := w.g.Command(w.ctx, "ip", "link", "set", w.link, "gso_max_segs", segments).In(w.netns).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	gso("1")
	name := strings.ReplaceAll(t.Name(), "/", "-") + ".pcap"
	dump := w.start(w.g.Command(w.ctx, "tcpdump", "-i", w.link, "--immediate-mode", "-U", "-Z", "root",
		"-s", "4400", "-B", "32768", "-w", w.g.SharePath(name), "udp port 4791").In(w.netns))
	dump.until("listening on")
	return func(filter string, fields ...string) (packets [][]string) {
		t.Helper()
		gso("65535")
		file := filepath.Join(w.g.Share, name)
		w.captured(t, file)
		require.NoError(t, dump.Signal(syscall.SIGINT))
		require.Contains(t, dump.ends(), "\n0 packets dropped by kernel")
		args := []string{"-n", "-r", file, "-Y", filter, "-T", "fields", "-E", "separator=/t"}
		for _, f := range fields {
			args = append(args, "-e", f)
		}
		tshark := exec.Command("tshark", args...)
		var complaints strings.Builder
		tshark.Stderr = &complaints
		out, err := tshark.Output()
		require.NoError(t, err, "%s", &complaints)
		for line := range strings.Lines(string(out)) {
			f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			require.Len(t, f, len(fields), line)
			packets = append(packets, f)
		}
		_ = os.Remove(file)
		return packets
	}
}

// source is the filter of packets that come from an address.
func source(a netip.Addr) string {
	if a.Is6() {
		return "ipv6.src == " + a.String()
	}
	return "ip.src == " + a.String()
}

// capture records what crosses softroce's interface. The function that it returns ends that and
// gives it to tshark: nothing that softroce sent may be malformed, and messages of each kind named must be among it. It returns
// how many REQs softroce has sent more than once.
func (w *world) capture(t *testing.T) (stop func(kinds ...string) (repeated int)) {
	t.Helper()
	end := w.record(t)
	return func(kinds ...string) (repeated int) {
		t.Helper()
		packets := end(source(w.ours), "frame.number", "_ws.col.Protocol", "_ws.col.Info",
			"_ws.malformed", "_ws.expert.severity", "_ws.expert.message", "infiniband.mad.transactionid")
		seen, requests := make(map[string]bool), make(map[string]int)
		for _, f := range packets {
			require.Equal(t, "RRoCE", f[1], f)
			require.Empty(t, f[3], "malformed: %s", f)
			require.Empty(t, traceroute.ReplaceAllString(f[5], ""), "tshark warns: %s", f)
			for _, kind := range kinds {
				seen[kind] = seen[kind] || strings.Contains(f[2], kind)
			}
			if strings.Contains(f[2], "ConnectRequest") {
				require.NotEmpty(t, f[6], f)
				if requests[f[6]]++; requests[f[6]] == 2 {
					repeated++
				}
			}
		}
		for _, kind := range kinds {
			require.True(t, seen[kind], "no %s among %d packets:\n%s", kind, len(packets), packets)
		}
		return repeated
	}
}

// traceroute is what tshark thinks of every UDP datagram with a port from 33434 on, which lies among those that Linux gives to
// sockets.
var traceroute = regexp.MustCompile(`^Possible traceroute: hop #\d+, attempt #\d+$`)

const last = "This is the last packet."

// captured waits until tcpdump has written all of what came before now: what it has not read yet when it is told to end is
// lost. It looks for a datagram that comes from the kernel's side here, which softroce ignores.
func (w *world) captured(t *testing.T, file string) {
	t.Helper()
	out, err := w.g.Command(w.ctx, "bash", "-c", "printf '"+last+"' >/dev/udp/"+w.ours.String()+"/4791").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		if bytes.Contains(b, []byte(last)) {
			return
		}
		select {
		case <-w.ctx.Done():
			require.FailNow(t, "tcpdump has not recorded the last packet")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
