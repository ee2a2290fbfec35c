package interop

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// TestRepeatedRequest sends a connection's REQ again when that is over, as it comes where a REQ was repeated and Linux 6.1 has kept the copy in
// a queue: it is a new request there, which comes to nothing, since the built-in device rejects the answer. A server of rsockets
// must not notice, and serve whoever comes next.
func TestRepeatedRequest(t *testing.T) {
	vmtest.Require(t, vm.Package{Name: "tshark", File: "/usr/bin/tshark"})
	w := theWorld(t).on("softroce")
	near, far := w.std.c.V4.String(), w.std.ours.V4.String()
	const capture = "repeated.pcap"
	dump := w.start(t, w.std.netns, nil, []string{
		"tcpdump", "-i", w.std.ours.Interface, "--immediate-mode", "-U", "-Z", "root", "-s", "4400",
		"-w", w.g.SharePath(capture), "udp port 4791",
	})
	dump.Says("listening on")
	// messages returns the fields of messages of the connection manager that were seen.
	messages := func(filter string, fields ...string) (lines []string) {
		args := []string{"-n", "-r", filepath.Join(w.g.Share, capture), "-Y", filter, "-T", "fields"}
		for _, f := range fields {
			args = append(args, "-e", f)
		}
		out, _ := exec.Command("tshark", args...).Output() // the end of the file may be incomplete
		return strings.Fields(string(out))
	}
	const request, reply, reject = "0x0010", "0x0013", "0x0012"
	from := func(addr, attr string) string {
		return "ip.src == " + addr + " && infiniband.mad.attributeid == " + attr
	}

	// Somebody must be there to reject.
	w.goAt(t, w.std, "httpd", "-addr", ":8090").Says("listening on")
	server := w.c(t, nil, "rcopy", "-p", "7428")
	server.Says("waiting for connection")
	path, sum := w.file(t, 1000)
	client := func(name string) {
		w.goAt(t, w.std, "rcopy", "-p", "7428", path, near+":/tmp/interop/"+name).Succeeds()
		require.Equal(t, []string{sum}, w.sums(t, "/tmp/interop/"+name))
	}
	client("copy")
	var first []string
	require.Eventually(t, func() bool {
		first = messages(from(far, request), "udp.srcport", "udp.payload")
		return len(first) >= 2
	}, time.Minute, 100*time.Millisecond)
	w.script(t, `ip netns exec `+w.std.netns+` /usr/bin/python3 -c '
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: an identification of 0, as in the original
s.bind(("`+far+`", `+first[0]+`))
time.sleep(1)  # until the kernel has forgotten
for i in range(3):
    s.sendto(bytes.fromhex("`+strings.ReplaceAll(first[1], ":", "")+`"), ("`+near+`", 4791))
    time.sleep(0.5)
'`)
	// They were requests, were answered, and the answers rejected.
	require.Eventually(t, func() bool { return len(messages(from(far, reject), "frame.number")) >= 1 }, time.Minute, 100*time.Millisecond)
	require.Greater(t, len(messages(from(near, reply), "frame.number")), 1)
	client("next")
	out := server.Output()
	require.Equal(t, 2, strings.Count(out, "client: "+far), out)
	server.Kill()
	dump.Kill()
}
