package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "peer" {
		main()
		return
	}
	testnet.Main()
	os.Exit(m.Run())
}

// TestSoak is a short run. RDMA_LONG=1 makes it one of two minutes.
func TestSoak(t *testing.T) {
	if !testnet.Own() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this system does not let us have a network namespace")
		}
		t.Skip("this system does not let us have a network namespace")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatal("ip(8) is missing: package iproute2")
	}
	o := options{seed: uint64(time.Now().UnixNano()), time: 10 * time.Second, devices: []string{"softroce", "shm"}, peers: 3, verbose: true}
	if os.Getenv("RDMA_LONG") != "" {
		o.time = 2 * time.Minute
	}
	require.NoError(t, soak(&o))
}

// TestWrongFound: what must not happen is told apart from what may.
func TestWrongFound(t *testing.T) {
	c := &conductor{options: &options{}, talks: make(map[uint64]*held), did: map[string]int{}, came: map[string]int{}}
	p := &process{device: "softroce", addr: "10.99.0.1:1", cmd: exec.Command("true")}
	p.cmd.Process = &os.Process{Pid: 1}
	onKernel := &process{device: "rdmacore", addr: "10.99.0.1:1", cmd: p.cmd}
	for _, row := range []struct {
		excuse, text string
		fault        bool
	}{
		{"", "7 dialed ok", false},
		{"", "7 accepted reset read: connection reset by peer", true},
		{"kill ", "7 accepted reset read: connection reset by peer", false},
		{"kill ", "7 accepted wrong other bytes than were sent", true},
		{"kill ", "7 accepted short io.EOF behind 1 of 2 bytes", true},
		{"", "8 dialed ok", true}, // nobody's
	} {
		c.faults, c.talks[7] = nil, &held{talk: talk{id: 7}, from: p, to: p, excuse: row.excuse}
		c.ended(p, row.text)
		assert.Equal(t, row.fault, len(c.faults) > 0, row.text)
	}
	for excuse, fault := range map[string]bool{"": true, "limit ": true, "limit kill ": false} {
		c.faults, c.talks[7] = nil, &held{talk: talk{id: 7}, from: onKernel, to: onKernel, excuse: excuse}
		c.ended(onKernel, "7 accepted short io.EOF behind 1 of 2 bytes")
		assert.Equal(t, fault, len(c.faults) > 0, "the kernel ends it after %q", excuse)
	}
}

// TestJudge: what grows, and what is left at rest.
func TestJudge(t *testing.T) {
	p := &process{cmd: exec.Command("true")}
	p.cmd.Process = &os.Process{Pid: 1}
	require.NoError(t, p.judge(`{"goroutines":10,"files":10,"mappings":100,"heap":1000000}`))
	require.NoError(t, p.judge(`{"goroutines":11,"files":12,"mappings":120,"heap":1500000}`))
	for name, text := range map[string]string{
		"goroutines":  `{"goroutines":1000,"files":10,"mappings":100,"heap":1000000}`,
		"files":       `{"goroutines":10,"files":1000,"mappings":100,"heap":1000000}`,
		"mappings":    `{"goroutines":10,"files":10,"mappings":1000,"heap":1000000}`,
		"heap":        `{"goroutines":10,"files":10,"mappings":100,"heap":100000000}`,
		"talks":       `{"busy":1}`,
		"connections": `{"conns":1}`,
		"left":        `{"left":"1 × queue pair"}`,
		"text":        `no JSON`,
	} {
		assert.Error(t, p.judge(text), name)
	}
}

// TestTalk: the header survives the way, and seeds decide all.
func TestTalk(t *testing.T) {
	for seed := range uint64(100) {
		a := newTalk(seed, seed*7)
		require.Equal(t, a, parseTalk(a.header()))
		require.Equal(t, a, newTalk(seed, seed*7))
	}
	assert.True(t, strings.HasPrefix(result(errWrong), "wrong "))
}
