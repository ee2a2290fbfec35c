package softroce

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/share"
)

const childEnv = "SOFTROCE_TEST_CHILD"

// A copy of the test binary is a process of its own that shares UDP port 4791.
func init() {
	if os.Getenv(childEnv) != "" {
		childMain()
		os.Exit(0)
	}
}

// childT ends the process where a test would fail.
type childT struct{ testing.TB }

func (childT) Helper() {}
func (childT) Errorf(f string, a ...any) {
	fmt.Println("failed", strings.ReplaceAll(fmt.Sprintf(f, a...), "\n", " "))
}
func (childT) FailNow()         { os.Exit(1) }
func (t childT) Fatal(a ...any) { t.Errorf("%s", fmt.Sprint(a...)); t.FailNow() }

// childMain does what its standard input says, one line after the other.
func childMain() {
	var t childT
	var sides []*side
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		cmd, arg, _ := strings.Cut(in.Text(), " ")
		switch cmd {
		case "listen":
			l := mustListen(t, Default(), netip.MustParseAddrPort(arg), nil)
			go serve(t, l)
			fmt.Println("listening", l.Addr())
		case "dial":
			x := resolveSide(t, Default(), netip.MustParseAddrPort(arg))
			sides = append(sides, x)
			fmt.Println("dialled", x.talk())
		case "close":
			for _, s := range sides {
				s.close()
			}
			sides = nil
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			fmt.Println("closed", Drain(ctx))
			cancel()
		case "handed":
			fmt.Println("handed", handedOver(Default()))
		default:
			return
		}
	}
}

// handedOver is the number of packets that a provider has passed on to others.
func handedOver(p *Provider) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inst.share.(*share.Process).Stats().HandedOver
}

// serve answers each connection's one message.
func serve(t testing.TB, l verbs.Listener) {
	for {
		id, err := l.GetRequest(context.Background())
		if err != nil {
			return
		}
		s := newSide(t, id)
		s.post()
		if id.Accept(&verbs.ConnParam{RNRRetryCount: 7}) != nil {
			s.close()
			continue
		}
		go func() {
			if s.quietCompletion() == verbs.Success {
				_, _ = s.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Inline: []byte("answer")}})
			}
			for !s.over() { // until the peer leaves
				time.Sleep(time.Millisecond)
			}
			s.close()
		}()
	}
}

// over tells whether the connection has ended, or will not come to be: the request may have been an old one that
// a stopped process had in its queue.
func (s *side) over() bool {
	ts := s.types()
	return slices.Contains(ts, verbs.EventDisconnected) || slices.Contains(ts, verbs.EventConnectError)
}

// quietCompletion waits for a completion as long as the connection stands.
func (s *side) quietCompletion() verbs.Status {
	var wc [1]verbs.WC
	for !s.over() {
		if n, err := s.cq.Poll(wc[:]); err != nil || n == 1 {
			return wc[0].Status
		}
		time.Sleep(time.Millisecond)
	}
	return verbs.WRFlushErr
}

// talk connects, sends a message and waits for the answer. It returns what
// went wrong, or "ok".
func (s *side) talk() string {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	s.post()
	if _, err := s.id.Connect(ctx, &param); err != nil {
		return err.Error()
	}
	if _, err := s.qp.PostSend([]verbs.SendWR{{ID: 2, Op: verbs.OpSend, Inline: []byte("question")}}); err != nil {
		return err.Error()
	}
	var wc [1]verbs.WC
	for ctx.Err() == nil {
		n, err := s.cq.Poll(wc[:])
		switch {
		case err != nil:
			return err.Error()
		case n == 1 && (wc[0].Status != verbs.Success || wc[0].ID != 1):
			return fmt.Sprintf("completion %+v", wc[0])
		case n == 1:
			if got := string(s.arena.Bytes()[:wc[0].ByteLen]); got != "answer" {
				return "answer " + got
			}
			return "ok"
		}
		time.Sleep(100 * time.Microsecond)
	}
	return "no answer"
}

// proc is a child process.
type proc struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func newProc(t *testing.T) *proc {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &proc{t: t, cmd: exec.Command(exe), lines: make(chan string, 1000)}
	c.cmd.Env = append(os.Environ(), childEnv+"=1")
	c.cmd.Stderr = os.Stderr
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.lines <- sc.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(c.kill)
	return c
}

func (c *proc) kill() {
	c.in.Close()
	_ = c.cmd.Process.Kill() // it may be gone
	for range c.lines {
	}
	_ = c.cmd.Wait()
}

// stop stops the process, and waits until all of it is: the signal takes a moment.
func (c *proc) stop() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(c.t, func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		require.NoError(c.t, err)
		for _, name := range tasks {
			b, err := os.ReadFile(name)
			if _, after, ok := strings.Cut(string(b), ") "); err == nil && ok && after[0] != 'T' {
				return false
			}
		}
		return len(tasks) > 0
	}, 10*time.Second, time.Millisecond)
}

// do sends a command and returns the answer, which begins with word.
func (c *proc) do(word, format string, args ...any) string {
	c.t.Helper()
	_, err := fmt.Fprintf(c.in, format+"\n", args...)
	require.NoError(c.t, err)
	select {
	case line := <-c.lines:
		rest, ok := strings.CutPrefix(line, word+" ")
		require.True(c.t, ok, "%q", line)
		return rest
	case <-time.After(30 * time.Second):
		c.t.Fatalf("no answer to %q", fmt.Sprintf(format, args...))
	}
	return ""
}

func (c *proc) listen(addr string) netip.AddrPort {
	c.t.Helper()
	return netip.MustParseAddrPort(c.do("listening", "listen %s", addr))
}

// talkTo makes a connection and closes it.
func talkTo(t *testing.T, p *Provider, to netip.AddrPort) {
	t.Helper()
	x := resolveSide(t, p, to)
	require.Equal(t, "ok", x.talk())
	require.NoError(t, x.id.Disconnect())
	require.Equal(t, verbs.Event{Type: verbs.EventDisconnected}, x.wait(1))
	x.close()
}

// TestProcesses: connections between processes that share the UDP port, in
// every direction. The kernel gives most packets to the wrong one at first.
func TestProcesses(t *testing.T) {
	for _, ip := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(ip, func(t *testing.T) {
			p := New(&Config{})
			a, b := newProc(t), newProc(t)
			l := mustListen(t, p, netip.MustParseAddrPort(ip), nil)
			var wg sync.WaitGroup
			wg.Go(func() { serve(t, l) })
			toA, toB := a.listen(ip), b.listen(ip)
			for range 10 {
				talkTo(t, p, toA)
				talkTo(t, p, toB)
				talkTo(t, p, l.Addr())
				require.Equal(t, "ok", a.do("dialled", "dial %s", l.Addr()))
				require.Equal(t, "ok", b.do("dialled", "dial %s", l.Addr()))
				require.Equal(t, "ok", a.do("dialled", "dial %s", toB))
				require.Equal(t, "ok", b.do("dialled", "dial %s", toA))
				require.Equal(t, "ok", b.do("dialled", "dial %s", toB))
			}
			handed := handedOver(p)
			for _, c := range []*proc{a, b} {
				n, err := strconv.ParseUint(c.do("handed", "handed"), 10, 64)
				require.NoError(t, err)
				handed += n
			}
			require.Positive(t, handed, "the kernel never chose wrong")

			// The port of one process is taken for all.
			_, err := p.Listen(background(), &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: toA})
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.ErrorContains(t, err, strconv.Itoa(a.cmd.Process.Pid))

			// Nobody listens in any process: told at once, whoever is asked.
			for range 10 {
				x := resolveSide(t, p, netip.AddrPortFrom(toA.Addr(), 1))
				start := time.Now()
				_, err := x.id.Connect(background(), &param)
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				require.Less(t, time.Since(start), 5*time.Second)
				x.close()
			}
			require.Equal(t, "<nil>", a.do("closed", "close"))
			require.Equal(t, "<nil>", b.do("closed", "close"))
			require.NoError(t, l.Close())
			wg.Wait()
			unused(t, p)
		})
	}
}

// TestProcessKilled: a process killed with -9 is noticed at once by those of
// its host that were connected to it; the others go on.
func TestProcessKilled(t *testing.T) {
	p := New(&Config{})
	a, b := newProc(t), newProc(t)
	toA, toB := a.listen("127.0.0.1:0"), b.listen("127.0.0.1:0")
	xa, xb := resolveSide(t, p, toA), resolveSide(t, p, toB)
	require.Equal(t, "ok", xa.talk())
	require.Equal(t, "ok", xb.talk())
	xa.post()
	start := time.Now()
	require.NoError(t, a.cmd.Process.Kill())
	require.Equal(t, verbs.Event{Type: verbs.EventDisconnected, Err: syscall.ECONNRESET}, xa.wait(1))
	require.Less(t, time.Since(start), 2*time.Second)
	for {
		if wc := xa.completion(); wc.ID == 1 {
			require.Equal(t, verbs.WRFlushErr, wc.Status)
			break
		}
	}
	a.kill()
	require.Empty(t, xb.types())
	talkTo(t, p, toB)

	// Its ports are free, and refuse.
	x := resolveSide(t, p, toA)
	_, err := x.id.Connect(background(), &param)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	x.close()
	again := mustListen(t, p, toA, nil)
	require.NoError(t, again.Close())
	xa.close()
	xb.close()
	unused(t, p)
}

// TestProcessStopped: a process that is stopped takes packets and does nothing with
// them; connections to others come to stand, and to an end, all the same.
func TestProcessStopped(t *testing.T) {
	p := New(&Config{})
	a, b := newProc(t), newProc(t)
	toA, toB := a.listen("127.0.0.1:0"), b.listen("127.0.0.1:0")
	talkTo(t, p, toA)
	a.stop()
	for range 5 {
		x := resolveSide(t, p, toB)
		ctx, cancel := context.WithTimeout(background(), 15*time.Second)
		_, err := x.id.Connect(ctx, &param)
		require.NoError(t, err)
		cancel()
		require.NoError(t, x.id.Disconnect())
		require.Equal(t, verbs.Event{Type: verbs.EventDisconnected}, x.wait(1))
		x.close()
	}
	x := resolveSide(t, p, toA)
	ctx, cancel := context.WithTimeout(background(), 300*time.Millisecond)
	_, err := x.id.Connect(ctx, &param)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	cancel()
	x.close()
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	talkTo(t, p, toA)
	unused(t, p)
}

// TestStormLoopback: the storm over the host's own sockets, in one process.
func TestStormLoopback(t *testing.T) {
	const peers = 300
	p := New(&Config{})
	l := mustListen(t, p, netip.MustParseAddrPort("127.0.0.1:0"), func(a *verbs.ListenAttr) { a.Backlog = peers })
	var xs, ys []*side
	var dones []func() error
	for range peers {
		x := resolveSide(t, p, l.Addr())
		xs, dones = append(xs, x), append(dones, x.dial(background()))
	}
	for range peers {
		time.Sleep(time.Millisecond)
		ys = append(ys, accept(t, l))
	}
	for i, done := range dones {
		require.NoError(t, done(), "peer %d", i)
	}
	require.Equal(t, verbs.ListenerStats{Requests: peers}, l.Stats())
	for i := range peers {
		ys[i].wait(1)
		if i%2 == 0 {
			xs[i].close()
			ys[i].close()
		} else {
			ys[i].close()
			xs[i].close()
		}
	}
	require.NoError(t, l.Close())
	unused(t, p)
}
