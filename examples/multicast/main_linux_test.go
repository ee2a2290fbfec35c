package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
)

// With this variable set the test binary is the program, so that the tests start real processes of it.
const asProgram = "MULTICAST_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	testnet.Main()
	os.Exit(m.Run())
}

func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

var summary = regexp.MustCompile(`(?m)subscriber \d+, process \d+: (\d+) quotes in order; (\d+) gaps, (\d+) quotes sent again, (\d+) lost for good; (\d+) datagrams thrown away`)

// Quotes are lost on purpose, answers to requests too, and all of them arrive in the end, in order.
func TestDemo(t *testing.T) {
	cmd := program(t, "-n", "4000", "-lose", "0.1")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	require.NoError(t, cmd.Run(), "%s%s", &out, &errOut)
	require.Empty(t, errOut.String())
	require.Contains(t, out.String(), "all 3 subscribers have all 4000 quotes, in order\n")
	found := summary.FindAllStringSubmatch(out.String(), -1)
	require.Len(t, found, 3, out.String())
	for _, f := range found {
		n := make([]int, len(f))
		for i := 1; i < len(f); i++ {
			n[i], _ = strconv.Atoi(f[i])
		}
		require.Equal(t, 4000, n[1])
		require.Greater(t, n[2], 100, "gaps")
		require.Greater(t, n[3], 200, "repaired")
		require.Zero(t, n[4], "lost")
		require.Greater(t, n[5], 300, "thrown away")
	}
}

// A publisher that is killed is missed, and an interrupted subscriber ends.
func TestKilledPublisher(t *testing.T) {
	sub := program(t, "subscribe", "-group", "239.255.8.2")
	out, err := sub.StdoutPipe()
	require.NoError(t, err)
	var errOut bytes.Buffer
	sub.Stderr = &errOut
	require.NoError(t, sub.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "subscribed to 239.255.8.2", lines.Text())
	pub := program(t, "publish", "-group", "239.255.8.2", "-rate", "100")
	require.NoError(t, pub.Start())
	require.True(t, lines.Scan())
	require.Contains(t, lines.Text(), "the publisher is ")
	require.NoError(t, pub.Process.Kill())
	_ = pub.Wait()
	start := time.Now()
	require.False(t, lines.Scan())
	require.Error(t, sub.Wait())
	require.Equal(t, 1, sub.ProcessState.ExitCode())
	require.Contains(t, errOut.String(), "the feed has been silent for 5s, after quote ")
	require.Less(t, time.Since(start), 20*time.Second)

	sub = program(t, "subscribe", "-group", "239.255.8.2")
	out, err = sub.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, sub.Start())
	require.True(t, bufio.NewScanner(out).Scan())
	require.NoError(t, sub.Process.Signal(os.Interrupt))
	require.Error(t, sub.Wait())
	require.Equal(t, 130, sub.ProcessState.ExitCode())
}

func TestBadInput(t *testing.T) {
	for _, args := range []string{"-nonsense", "nonsense", "-n 0", "-rate 0", "-lose 1", "-subscribers 0", "publish x"} {
		cmd := program(t, strings.Fields(args)...)
		require.Error(t, cmd.Run())
		require.Equal(t, 2, cmd.ProcessState.ExitCode(), args)
	}
	require.NoError(t, program(t, "-h").Run())
	for args, why := range map[string]string{
		"publish -group x": "x", "subscribe -group 10.1.2.3": "224.0.0.0 to 239.255.255.255", "subscribe -interface nonsense": "nonsense",
	} {
		cmd := program(t, strings.Fields(args)...)
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		require.Error(t, cmd.Run())
		require.Equal(t, 1, cmd.ProcessState.ExitCode(), args)
		require.Contains(t, errOut.String(), why)
	}
}
