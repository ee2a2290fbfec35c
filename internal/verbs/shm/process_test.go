//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

const childEnv = "SHM_TEST_CHILD"

// TestChild is the other process of the tests below: it dials the address that it is told, or listens, and keeps its peer busy.
func TestChild(t *testing.T) {
	what := os.Getenv(childEnv)
	if what == "" {
		return // it is no test by itself
	}
	p := New()
	ctx := context.Background()
	if s, ok := strings.CutPrefix(what, "hostile "); ok {
		var seed uint64
		var at netip.AddrPort
		_, err := fmt.Sscan(s, &seed, newAddr(&at))
		require.NoError(t, err)
		beHostile(ctx, seed, at)
	}
	if s, ok := strings.CutPrefix(what, "share "); ok {
		var conns int
		var at netip.AddrPort
		_, err := fmt.Sscan(s, &conns, newAddr(&at))
		require.NoError(t, err)
		require.NoError(t, sendForever(ctx, p, at, conns))
	}
	if what == "listen" {
		l, err := listenAt(p)
		require.NoError(t, err)
		fmt.Printf("listening at %v\n", l.Addr())
		for {
			s, err := acceptFrom(ctx, l)
			if err == nil {
				go bother(s)
			}
		}
	}
	if what == "hold" { // requests wait
		l, err := listenAt(p)
		require.NoError(t, err)
		fmt.Printf("listening at %v\n", l.Addr())
		select {}
	}
	to := netip.MustParseAddrPort(what)
	for range 4 {
		s, err := dialTo(ctx, p, to)
		require.NoError(t, err)
		go bother(s)
	}
	fmt.Println("connected")
	select {}
}

// bother sends and receives for ever: first the peer tells where its memory is.
func bother(s *side) {
	_, _ = s.qp.PostRecv(make([]verbs.RecvWR, 64))
	var wcs [16]verbs.WC
	out := []verbs.SGE{{Addr: s.mr.Addr(), Length: sideMemory / 2, LKey: s.mr.LKey()}}
	for {
		_, _ = s.qp.PostSend([]verbs.SendWR{
			{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: out}, {Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Inline: make([]byte, 100)},
		})
		n, _ := s.cq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.Op == verbs.WCRecv {
				_, _ = s.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: s.mr.Addr(), Length: sideMemory, LKey: s.mr.LKey()}}}})
			}
		}
	}
}

// start starts the other process. It returns what that says first.
func start(t *testing.T, what string) (cmd *exec.Cmd, said func() string) {
	cmd = exec.Command("/proc/self/exe", "-test.run=^TestChild$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childEnv+"="+what, "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	return cmd, func() string {
		var line []byte
		b := make([]byte, 1)
		for len(line) == 0 || line[len(line)-1] != '\n' {
			if _, err := io.ReadFull(out, b); err != nil {
				break
			}
			line = append(line, b[0])
		}
		return strings.TrimSpace(string(line))
	}
}

// kill ends the other process as kill -9 does.
func kill(t *testing.T, cmd *exec.Cmd) {
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
}

// stop stops the other process, and returns when it is.
func stop(t *testing.T, cmd *exec.Cmd) {
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		return bytes.Contains(stat, []byte(") T "))
	}, 10*time.Second, 100*time.Microsecond)
}

// lostAtOnce checks that a connection ends as that of a dead peer does.
func lostAtOnce(t *testing.T, s *side) {
	t.Helper()
	for timeout := time.After(10 * time.Second); ; {
		select {
		case e := <-s.events:
			if e.Type == verbs.EventEstablished {
				continue
			}
			require.ErrorIs(t, e.Err, syscall.ECONNRESET)
		case <-timeout:
			require.Fail(t, "nobody notices that the peer is dead")
		}
		break
	}
	// Its queue pair has failed.
	n, err := s.qp.PostSend([]verbs.SendWR{{ID: 77, Op: verbs.OpSend}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		var wcs [16]verbs.WC
		n, err := s.cq.Poll(wcs[:])
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			if wc.ID == 77 {
				require.Equal(t, verbs.WRFlushErr, wc.Status)
				return
			}
		}
	}
	require.Fail(t, "the request does not complete")
}

// TestKilled kills the other process at any instant, again and again: connections end with ECONNRESET, and nothing is left.
func TestKilled(t *testing.T) {
	_, fds := held(t)
	rounds := 12
	if long() {
		rounds = 300
	}
	worst := time.Duration(0)
	for round := range rounds {
		p := New()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var cmd *exec.Cmd
		var sides []*side
		if round%2 == 0 {
			var said func() string
			cmd, said = start(t, "listen")
			at, ok := strings.CutPrefix(said(), "listening at ")
			require.True(t, ok)
			for range 4 {
				s, err := dialTo(ctx, p, netip.MustParseAddrPort(at))
				require.NoError(t, err)
				sides = append(sides, s)
			}
		} else {
			l, err := listenAt(p)
			require.NoError(t, err)
			cmd, _ = start(t, l.Addr().String())
			for range 1 + rand.IntN(4) {
				s, err := acceptFrom(ctx, l)
				require.NoError(t, err)
				sides = append(sides, s)
			}
			require.NoError(t, l.Close())
		}
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, s := range sides {
					botherOnce(s)
				}
			}
		}()
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		begin := time.Now()
		kill(t, cmd)
		close(stop)
		<-done
		for _, s := range sides {
			lostAtOnce(t, s)
		}
		worst = max(worst, time.Since(begin))
		for _, s := range sides {
			busy, err := s.close()
			require.NoError(t, err)
			require.False(t, busy)
		}
		cancel()
	}
	t.Logf("noticed after %v at most, the process's end included", worst)
	requireNothingHeld(t, fds)
}

// botherOnce is a turn of what bother does.
func botherOnce(s *side) {
	var wcs [16]verbs.WC
	_, _ = s.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: s.mr.Addr(), Length: sideMemory, LKey: s.mr.LKey()}}}})
	_, _ = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: s.mr.Addr(), Length: sideMemory / 2, LKey: s.mr.LKey()}}}})
	_, _ = s.cq.Poll(wcs[:])
}

// TestStopped stops the other process in the middle of its work. No call waits for it; what it may still be at is busy, until
// it goes on or is killed.
func TestStopped(t *testing.T) {
	_, fds := held(t)
	rounds := 6
	if long() {
		rounds = 100
	}
	for range rounds {
		p := New()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		cmd, said := start(t, "listen")
		at, ok := strings.CutPrefix(said(), "listening at ")
		require.True(t, ok)
		to := netip.MustParseAddrPort(at)
		var sides []*side
		for range 4 {
			s, err := dialTo(ctx, p, to)
			require.NoError(t, err)
			sides = append(sides, s)
		}
		for end := time.Now().Add(time.Duration(rand.IntN(3000)) * time.Microsecond); time.Now().Before(end); {
			for _, s := range sides {
				botherOnce(s)
			}
		}
		stop(t, cmd)
		bounded := func(what string, f func()) {
			begin := time.Now()
			f()
			require.Less(t, time.Since(begin), 3*time.Second, what)
		}
		bounded("posting and polling", func() {
			for range 200 {
				for _, s := range sides {
					botherOnce(s)
				}
			}
		})
		bounded("connecting", func() {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err := dialTo(short, p, to)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = dialTo(short, New(), to)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
		var busy []*side
		bounded("closing", func() {
			for _, s := range sides {
				b, err := s.close()
				require.NoError(t, err)
				if b {
					busy = append(busy, s)
				}
			}
		})
		if rand.IntN(2) == 0 {
			require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		} else {
			kill(t, cmd)
		}
		for _, s := range busy {
			require.Eventually(t, func() bool { return s.mr.Close() == nil }, 10*time.Second, time.Millisecond)
			require.NoError(t, errors.Join(s.arena.Close(), s.pd.Close()))
		}
		if cmd.ProcessState == nil {
			kill(t, cmd)
		}
		cancel()
	}
	requireNothingHeld(t, fds)
}

// runAlone runs the test that calls it in a process of its own, in whose environment name is set.
func runAlone(t *testing.T, name string) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), name+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}
