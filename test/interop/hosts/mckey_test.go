package hosts

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

// station is an mckey: that of C, or ours on one of the hosts.
type station struct {
	host
	name, path string
}

func (s station) start(t *testing.T, args ...string) *vmtest.Process {
	t.Helper()
	args = append([]string{"-b", s.addr("IPv4").String()}, args...)
	if s.name == "C" {
		return s.host.start(t, "stdbuf", append([]string{"-oL", s.path}, args...)...) // lines as they come
	}
	return s.host.start(t, s.path, args...)
}

// stations are C's and ours on the kernel's device, and ours on the built-in one.
func stations(t *testing.T) []station {
	t.Helper()
	soft, core := theHosts(t)
	const mckey = "github.com/go-rdma/rdma/cmd/mckey"
	onCore, err := core.g.Build(t.Context(), mckey)
	require.NoError(t, err)
	onSoft, err := soft.g.Build(t.Context(), mckey)
	require.NoError(t, err)
	return []station{{core, "C", "mckey"}, {core, "rdmacore", onCore}, {soft, "softroce", onSoft}}
}

// stdout is what both programs print when all goes well.
func stdout(role, group string, members int, data string) string {
	return "mckey: starting " + role + "\nmckey: joining\n" +
		strings.Repeat("mckey: joined dgid: ::ffff:"+group+" mlid 0x0 sl 0\n", members) +
		data + " data transfers\ndata transfers complete\ntest complete\nreturn status 0\n"
}

// TestMckey has a sender of each kind send to receivers of each kind, all of them at once, with four queue pairs each. What they print
// is the same.
func TestMckey(t *testing.T) {
	all := stations(t)
	for i, sender := range all {
		t.Run(sender.name+" sends", func(t *testing.T) {
			for j, c := range []struct {
				space, size string
				senders     int
			}{{"0x111", "100", 1}, {"273", "4096", 4}} {
				group := fmt.Sprintf("239.1.8.%d", 1+2*i+j)
				var receivers []*vmtest.Process
				for _, r := range all {
					p := r.start(t, "-m", group, "-c", "4", "-C", "12", "-S", c.size, "-p", c.space)
					p.Says("receiving data transfers")
					receivers = append(receivers, p)
				}
				p := sender.start(t, "-m", group, "-s", "-c", fmt.Sprint(c.senders), "-C", fmt.Sprint(12/c.senders), "-S", c.size, "-p", c.space)
				assert.Equal(t, stdout("client", group, c.senders, "initiating"), p.Succeeds())
				for k, r := range receivers {
					assert.Equal(t, stdout("server", group, 4, "receiving"), r.Succeeds(), all[k].name)
				}
			}
		})
	}
}

// TestMckeyFails: C's program and ours refuse the same things on the kernel's device, in the same words on standard output and the same
// first words on standard error; ours explains.
func TestMckeyFails(t *testing.T) {
	all := stations(t)
	c, ours := all[0], all[1]
	v6 := c.addr("IPv6").String()
	for _, x := range []struct {
		args      []string
		what, why string // the line of C, and what we say of it
	}{
		{[]string{"-m", "ff0e::8:1", "-b", v6}, "mckey: failure joining: ", "this kernel has no IPv6 groups on RoCE, use an IPv4 group"},
		{[]string{"-m", "239.1.8.20", "-p", "2"}, "mckey: addr bind failure: ", "port space IPOIB needs InfiniBand"},
		{[]string{"-m", "0.0.0.0"}, "mckey: failure joining: ", "on RoCE name one"},
		{[]string{"-m", "239.1.8.20", "-b", "192.0.2.1"}, "mckey: addr bind failure: Cannot assign requested address", "must be one of this host's"},
		{[]string{"-m", "239.1.8.20", "-b", v6}, "mckey: resolve addr failure: Invalid argument", "different families"},
		{[]string{"-m", "239.1.8.20", "-S", "4097"}, "mckey: message_size 4097 is larger than active mtu 4096", ""},
	} {
		t.Run(strings.Join(x.args, " "), func(t *testing.T) {
			for _, s := range []station{c, ours} {
				p := s.start(t, append([]string{"-s"}, x.args...)...) // the last -b counts
				out, err := p.Ends()
				exit := new(vm.ExitError)
				require.ErrorAs(t, err, &exit, out)
				assert.Equal(t, 255, exit.Code, out)
				assert.Contains(t, out, x.what)
				assert.True(t, strings.HasPrefix(out, "mckey: starting client\nmckey: joining\n"), out)
				assert.True(t, strings.HasSuffix(out, "test complete\nreturn status -1\n"), out)
				if s.name != "C" {
					assert.Contains(t, out, x.why)
				}
			}
		})
	}
	// The embedded device does what RoCE allows.
	for _, args := range [][]string{{"-m", "ff15::8:1", "-b", all[2].addr("IPv6").String()}, {"-m", "239.1.8.21", "-p", "2"}, {"-m", "0.0.0.0"}} {
		assert.Contains(t, all[2].start(t, append(args, "-s")...).Succeeds(), "data transfers complete")
	}
}

// TestMembershipOnTheWire: routers hear of a member of the embedded device by IGMP and MLD (RFC 3376, RFC 3810), when it joins, when it leaves and
// when it is killed, and nothing of who only sends.
func TestMembershipOnTheWire(t *testing.T) {
	all := stations(t)
	soft, core := all[2], all[0]
	for _, x := range []struct{ group, bind, join, leave string }{
		{"239.1.8.30", soft.addr("IPv4").String(), "[gaddr 239.1.8.30 to_ex", "[gaddr 239.1.8.30 to_in"},
		{"ff15::8:30", soft.addr("IPv6").String(), "[gaddr ff15::8:30 to_ex", "[gaddr ff15::8:30 to_in"},
	} {
		t.Run(x.group, func(t *testing.T) {
			// MLD has a header of options, so no filter by the name of ICMP finds it.
			dump := vmtest.Run(t, core.g.Command(t.Context(), "tcpdump", "-l", "-n", "-v", "-i", core.g.Wire.Interface, "igmp or ip6[6] == 0"))
			dump.Says("listening on")
			only := soft.start(t, "-b", x.bind, "-m", x.group, "-s", "-o")
			only.Says("joined")
			assert.Contains(t, only.Succeeds(), "data transfers complete")
			time.Sleep(time.Second) // reports are sent again after a second at most
			assert.NotContains(t, dump.Output(), x.group)
			for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
				seen := len(dump.Output())
				p := soft.start(t, "-b", x.bind, "-m", x.group)
				p.Says("receiving data transfers")
				says(t, dump, seen, x.join)
				require.NoError(t, p.Cmd.Signal(sig))
				p.Fails()
				says(t, dump, seen, x.leave)
			}
			out, err := soft.g.Script(t.Context(), "cat /proc/net/igmp /proc/net/igmp6")
			require.NoError(t, err)
			assert.NotContains(t, out, "1E0801EF")
			assert.NotContains(t, out, "ff150000000000000000000000080030")
		})
	}
}

// says waits until a process has written something behind a place.
func says(t *testing.T, p *vmtest.Process, from int, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.Output()[from:], what) }, vmtest.Patience, 20*time.Millisecond, what)
}
