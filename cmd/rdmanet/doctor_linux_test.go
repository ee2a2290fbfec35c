package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/doctor"
	"github.com/go-rdma/rdma/internal/testnet"
)

// examine runs the program's doctor, and finds its checks by name.
func examine(t *testing.T, args ...string) (status int, r doctor.Report, check func(name string) doctor.Check) {
	t.Helper()
	status, out, errOut := runTool(t, append([]string{"doctor", "--json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &r), "%s%s", out, errOut)
	assert.Empty(t, errOut)
	return status, r, func(name string) doctor.Check {
		for _, c := range r.Checks {
			if c.Name == name {
				return c
			}
		}
		require.FailNow(t, "no check "+name, "%+v", r.Checks)
		return doctor.Check{}
	}
}

func TestDoctor(t *testing.T) {
	status, out, errOut := runTool(t, "doctor", "-d", "softroce")
	assert.Equal(t, 0, status, errOut)
	assert.Contains(t, out, "ok       UDP port 4791, softroce: free\n")
	assert.Contains(t, out, "ok       connection (CM), softroce: to ")
	assert.Contains(t, out, "ok       data, softroce: 1048576 bytes there and back, SEND, READ and WRITE: ")
	assert.Contains(t, out, "\nRDMA works: softroce\n")
	assert.NotContains(t, out, "Fix first")

	status, r, check := examine(t, "-d", "softroce")
	assert.Equal(t, 0, status)
	assert.Equal(t, []string{"softroce"}, r.Works)
	assert.Nil(t, r.First)
	assert.Equal(t, doctor.OK, check("data").Status)
}

// Shared memory is a check of its own. It alone is what was asked for only if it was.
func TestDoctorShm(t *testing.T) {
	status, out, errOut := runTool(t, "doctor", "-d", "shm")
	assert.Equal(t, 0, status, errOut)
	assert.Contains(t, out, "ok       connection (CM), shm: to 127.0.0.1 and back in ")
	assert.Contains(t, out, "ok       data, shm: 1048576 bytes there and back, SEND, READ and WRITE: ")
	assert.Contains(t, out, "\nRDMA works: shm\n")
	assert.NotContains(t, out, "4791")

	status, r, _ := examine(t)
	assert.Equal(t, 0, status)
	assert.Equal(t, []string{"softroce", "shm"}, r.Works)
	asRoot(t)
	need(t, "python3")
	holdPort(t)
	status, r, check := examine(t)
	assert.Equal(t, 1, status)
	assert.Equal(t, []string{"shm"}, r.Works)
	assert.Equal(t, doctor.Failed, check("UDP port 4791").Status)
	status, out, _ = runTool(t, "doctor")
	assert.Equal(t, 1, status)
	assert.Contains(t, out, "\nRDMA works between processes of this host only: shm\nFix first: ")
	status, _, _ = examine(t, "-d", "shm")
	assert.Equal(t, 0, status)
}

// A device that is asked for and is not there is a fault, though the embedded one would work.
func TestDoctorNoSuchDevice(t *testing.T) {
	for _, d := range []string{"rdmacore", "mlx5_7", "mlx5_7/1,rdmacore"} {
		status, r, check := examine(t, "-d", d)
		assert.Equal(t, 1, status, d)
		assert.Empty(t, r.Works)
		assert.Equal(t, doctor.Failed, check("RDMA devices").Status)
		require.NotNil(t, r.First)
		assert.NotEmpty(t, r.First.Fix)
	}
	status, out, _ := runTool(t, "doctor", "-d", "mlx5_7")
	assert.Equal(t, 1, status)
	assert.Contains(t, out, "\nRDMA does not work here\nFix first: ")
}

// inNetwork runs a command in a new network namespace, whose loopback interface is down.
func inNetwork(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	cmd.SysProcAttr = testnet.Attr(os.Getuid(), os.Getgid())
	cmd.SysProcAttr.Pdeathsig = 0
	return startCommand(t, cmd)
}

// toolCommand is the program, with some variables of the environment.
func toolCommand(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	return cmd
}

func TestDoctorNoNetwork(t *testing.T) {
	status, out, _ := inNetwork(t, toolCommand(nil, "doctor", "-d", "softroce")).ends()
	assert.Equal(t, 1, status)
	assert.Contains(t, out, "failed   network, softroce: no interface is up and has an address, not even the loopback one\n")
	assert.Contains(t, out, "Fix first: no interface is up and has an address, not even the loopback one\n           ip link set lo up")
}

// holdPort has another user hold UDP port 4791 until the test ends.
func holdPort(t *testing.T) *process {
	t.Helper()
	python, err := exec.LookPath("/usr/bin/python3")
	if err != nil {
		python = "python3"
	}
	cmd := exec.Command(python, "-c", "import socket,time;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(('',4791));print('bound',flush=True);time.sleep(3600)")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	s := startCommand(t, cmd)
	s.says("bound")
	return s
}

// Whoever else has the port is named.
func TestDoctorPort(t *testing.T) {
	t.Run("of this user", func(t *testing.T) {
		s := start(t, "ping", "--listen", "127.0.0.1:0")
		s.says("listening")
		status, _, check := examine(t, "-d", "softroce")
		assert.Equal(t, 0, status)
		c := check("UDP port 4791")
		assert.Equal(t, doctor.OK, c.Status)
		assert.Contains(t, c.Detail, "shared with process "+strconv.Itoa(s.cmd.Process.Pid)+" (")
	})
	t.Run("of another user", func(t *testing.T) {
		asRoot(t)
		need(t, "python3")
		s := holdPort(t)
		status, r, check := examine(t, "-d", "softroce")
		assert.Equal(t, 1, status)
		c := check("UDP port 4791")
		assert.Equal(t, doctor.Failed, c.Status)
		who := "process " + strconv.Itoa(s.cmd.Process.Pid) + " (python3"
		assert.Contains(t, c.Detail, who)
		assert.Contains(t, c.Detail, "(uid 65534)")
		require.NotNil(t, r.First)
		assert.Equal(t, "UDP port 4791", r.First.Name)
		assert.Contains(t, r.First.Fix, "end "+who)
		assert.Equal(t, doctor.Failed, check("connection (CM)").Status)
		assert.Equal(t, doctor.Skipped, check("data").Status)
	})
}

// A container whose interface leads out of its network namespace may be behind NAT.
func TestDoctorContainer(t *testing.T) {
	need(t, "ip", "sh")
	sh := func(script string) *process {
		cmd := toolCommand([]string{"container=podman"}, "-c", script)
		cmd.Args = append([]string{"sh"}, cmd.Args[1:]...)
		path, err := exec.LookPath("sh")
		require.NoError(t, err)
		cmd.Path = path
		return inNetwork(t, cmd)
	}
	const other = "unshare -n sleep 3600 & o=$!; trap 'kill $o' EXIT; until [ $(readlink /proc/$o/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.02; done; ip link set lo up; "
	tool := os.Args[0] + " doctor -d softroce"
	status, out, errOut := sh(other + "ip link add eth0 type veth peer name v1 && ip link set v1 netns $o && ip addr add 172.17.0.2/16 dev eth0 && ip link set eth0 up && " +
		"ip route add default dev eth0 && " + tool).ends()
	assert.Equal(t, 0, status, errOut)
	assert.Regexp(t, `warning  NAT, softroce: this is a container \(.*\) with a network of its own \(eth0, 172\.17\.0\.2\)`, out)
	assert.Contains(t, out, "RDMA works: softroce\nFix first: this is a container")
	assert.Contains(t, out, "docker run --network=host")

	// One on a network of the host's, and one with a public address, have no such sign.
	for _, addr := range []string{"172.17.0.2/16", "203.0.113.2/24"} {
		kind := "type veth peer name v1 && ip link set v1 netns $o"
		if addr[0] == '1' {
			kind = "type veth peer name v1 && ip link set v1 up"
		}
		status, out, errOut = sh(other + "ip link add eth0 " + kind + " && ip addr add " + addr + " dev eth0 && ip link set eth0 up && ip route add default dev eth0 && " + tool).ends()
		assert.Equal(t, 0, status, errOut)
		assert.Contains(t, out, "ok       NAT, softroce: no sign of it", addr)
	}
}

func TestDoctorPeer(t *testing.T) {
	s := start(t, "ping", "--listen", "127.0.0.1:0")
	addr := s.says(`listening on (\S+)`)[1]
	status, _, check := examine(t, "-d", "softroce", "--peer", addr)
	assert.Equal(t, 0, status)
	assert.Contains(t, check("peer").Detail, addr+" answers, ")

	status, r, check := examine(t, "-d", "softroce", "--peer", "127.0.0.1")
	assert.Equal(t, 1, status, "the peer is not reached")
	assert.Equal(t, []string{"softroce"}, r.Works, "though the device works")
	assert.Equal(t, "peer", r.First.Name)
	assert.Equal(t, "the host is reached; run there: rdmanet ping --listen", check("peer").Fix)

	status, _, check = examine(t, "-d", "softroce", "--peer", "192.0.2.1")
	assert.Equal(t, 1, status)
	assert.Equal(t, "ip route get 192.0.2.1", check("peer").Fix)
}

// A network that rewrites addresses: what a client in one namespace sends to the one between arrives in a third, from another
// address. The one who sends hears nothing; the one who should have heard says why.
func TestNAT(t *testing.T) {
	need(t, "ip", "sh")
	const wait = "until ip link set lo up && ip addr add %s dev eth0 2>/dev/null; do sleep 0.02; done; ip link set eth0 up; exec %s %s"
	// host is a namespace joined to this one by a wire.
	host := func(near, wire, addr, args string) *process {
		cmd := toolCommand([]string{"RDMANET_DEVICE=softroce"})
		path, err := exec.LookPath("sh")
		require.NoError(t, err)
		cmd.Path, cmd.Args = path, []string{"sh", "-c", fmt.Sprintf(wait, addr, os.Args[0], args)}
		p := inNetwork(t, cmd)
		command(t, "ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(p.cmd.Process.Pid))
		t.Cleanup(func() { _ = exec.Command("ip", "link", "del", wire).Run() }) // it went with the namespace, perhaps
		command(t, "ip", "addr", "add", near, "dev", wire)
		command(t, "ip", "link", "set", wire, "up")
		return p
	}
	s := host("10.7.0.1/24", "wire7", "10.7.0.2/24", "ping --listen")
	s.says("listening")
	between, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 4791})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 9000)
		for {
			n, err := between.Read(b)
			if err != nil {
				return
			}
			_, _ = between.WriteTo(b[:n], &net.UDPAddr{IP: net.IPv4(10, 7, 0, 2), Port: 4791})
		}
	}()
	c := host("10.8.0.1/24", "wire8", "10.8.0.2/24", "ping -c 1 --timeout 2s 10.8.0.1")
	status, _, errOut := c.ends()
	assert.Equal(t, 1, status)
	assert.Contains(t, errOut, "no NAT between?")
	s.says(`\d+ packets came whose checksum \(ICRC\) does not fit their addresses and ports: something on the way rewrites them \(NAT\)`)
	between.Close()
	<-done
}
