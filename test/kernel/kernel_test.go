// Package kernel tests softroce against Linux's Soft-RoCE and librdmacm's programs, in a guest. Softroce is in a network
// namespace of its own, so that all of its packets cross an interface.
package kernel

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
	"github.com/go-rdma/rdma/test/vm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m) }

// long asks for the full measure of what is otherwise kept short.
var long = os.Getenv("RDMA_LONG") != ""

// patience is for one exchange between two programs on emulated processors.
const patience = 3 * time.Minute

// world is the guest, and the addresses of one family in it.
type world struct {
	testing.TB
	g            *vm.Guest
	ctx          context.Context
	netns, link  string // where softroce is
	kernel, ours netip.Addr
	program      string // peer
}

var lastPort atomic.Int32

// port returns one that no other test uses: those of dead programs are not free at once.
func port() int { return int(17000 + lastPort.Add(1)) }

// families runs a test over IPv4 and over IPv6.
func families(t *testing.T, f func(t *testing.T, w *world)) {
	g, p := vmtest.SharedPeer(t)
	program, err := g.Build(t.Context(), "github.com/go-rdma/rdma/test/kernel/peer", "-race")
	require.NoError(t, err)
	for _, c := range []struct {
		name         string
		kernel, ours netip.Addr
	}{{"IPv4", p.Near.V4, p.Far.V4}, {"IPv6", p.Near.V6, p.Far.V6}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			f(t, &world{t, g, ctx, p.Netns, p.Far.Interface, c.kernel, c.ours, program})
		})
	}
}

// output collects what a program prints, and lets tests wait for a line of it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
	new chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	select {
	case o.new <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a command that runs.
type process struct {
	*vm.Cmd
	w   *world
	out *output
}

func (w *world) start(c *vm.Cmd) *process {
	w.Helper()
	p := &process{c, w, &output{new: make(chan struct{}, 1)}}
	c.Stdout, c.Stderr = p.out, p.out
	require.NoError(w, c.Start())
	return p
}

// until waits until the process has printed some words.
func (p *process) until(words string) *process {
	p.w.Helper()
	for !strings.Contains(p.out.String(), words) {
		select {
		case <-p.out.new:
		case <-p.w.ctx.Done():
			require.FailNow(p.w, "waiting for "+strconv.Quote(words), "%s printed: %s", p.Cmd, p.out)
		}
	}
	return p
}

// ends waits for the end of the process, which must be a good one.
func (p *process) ends() string {
	p.w.Helper()
	err := p.Wait()
	out := p.out.String()
	require.NoError(p.w, err, "%s", out[max(0, len(out)-4096):]) // rping prints all it gets
	return out
}

// fails waits for the end of the process with a status other than 0.
func (p *process) fails() (code int, out string) {
	p.w.Helper()
	exit := new(vm.ExitError)
	require.ErrorAs(p.w, p.Wait(), &exit, "%s", p.out)
	return exit.Code, p.out.String()
}

// c starts a program of the guest's, on the kernel's Soft-RoCE. Its output comes line by line.
func (w *world) c(name string, args ...any) *process {
	w.Helper()
	return w.start(w.g.Command(w.ctx, "stdbuf", append([]string{"-oL", name}, words(args)...)...))
}

// peer starts the program on softroce.
func (w *world) peer(args ...any) *process {
	w.Helper()
	return w.start(w.g.Command(w.ctx, w.program, words(args)...).In(w.netns))
}

// some returns all of the choices or, unless it is to be the full measure, every other one: those of IPv6 are not those of IPv4.
func some[T any](w *world, choices ...T) (chosen []T) {
	for i, c := range choices {
		if long || (i%2 == 1) == w.ours.Is6() {
			chosen = append(chosen, c)
		}
	}
	return chosen
}

func words(args []any) (s []string) {
	for _, a := range args {
		s = append(s, fmt.Sprint(a))
	}
	return s
}

func (w *world) listens(p *process, port int) *process {
	w.Helper()
	require.NoError(w, w.g.WaitListen(w.ctx, port), "%s", p.out)
	return p
}

// Messages of one packet and of many, both ways, on several connections.
func TestUcmatose(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for _, size := range some(w, 100, 5000) {
			t.Run(fmt.Sprintf("%d bytes, KernelListens", size), func(t *testing.T) {
				stop := w.capture(t)
				p := port()
				s := w.listens(w.c("ucmatose", "-b", w.kernel, "-p", p, "-c", 5, "-S", size), p)
				require.Contains(t, w.peer("cmatose", "-s", w.kernel, "-p", p, "-c", 5, "-S", size).ends(), "both ways")
				require.Contains(t, s.ends(), "data transfers complete")
				stop("ConnectRequest", "ReadyToUse", "DisconnectReply", "RC Send", "RC Acknowledge")
			})
			t.Run(fmt.Sprintf("%d bytes, SoftroceListens", size), func(t *testing.T) {
				stop := w.capture(t)
				p := port()
				s := w.peer("cmatose", "-b", w.ours, "-p", p, "-c", 5, "-S", size).until("listening")
				require.Contains(t, w.c("ucmatose", "-s", w.ours, "-p", p, "-c", 5, "-S", size).ends(), "data transfers complete")
				require.Contains(t, s.ends(), "both ways")
				stop("ConnectReply", "DisconnectRequest", "RC Send", "RC Acknowledge")
			})
		}
	})
}

// Many connections at once.
func TestStorm(t *testing.T) {
	const n = 60
	families(t, func(t *testing.T, w *world) {
		t.Run("KernelListens", func(t *testing.T) {
			stop := w.capture(t)
			p := port()
			s := w.listens(w.c("cmtime", "-b", w.kernel, "-p", p, "-c", n), p)
			require.Contains(t, w.peer("storm", "-s", w.kernel, "-p", p, "-c", n).ends(), "all connections have ended")
			s.endsCmtime(stop("ConnectRequest", "ReadyToUse", "DisconnectRequest"))
		})
		t.Run("SoftroceListens", func(t *testing.T) {
			stop := w.capture(t)
			p := port()
			s := w.peer("storm", "-b", w.ours, "-p", p, "-c", n).until("listening")
			w.c("cmtime", "-s", w.ours, "-p", p, "-c", n).ends()
			require.Contains(t, s.ends(), "all connections have ended")
			stop("ConnectReply", "DisconnectReply")
		})
	})
}

// endsCmtime ends the server of cmtime, which never ends by itself. It is dead only if a REQ was repeated, which softroce does
// after a second. Linux 6.1 forgets who asked for a connection when that ends, so a copy of the REQ that it has kept in a queue for so long
// becomes another request. Nobody is there to take the answer to it, which softroce rejects, as invalid communication ID
// (IBTA 12.6.7.2). And cmtime of rdma-core 44 does not survive RDMA_CM_EVENT_REJECTED in a server, whoever the client is.
func (p *process) endsCmtime(repeated int) {
	p.w.Helper()
	_ = p.Kill()
	exit := new(vm.ExitError)
	require.ErrorAs(p.w, p.Wait(), &exit, "%s", p.out)
	p.w.Logf("%d REQs were sent more than once", repeated)
	if exit.Signal == int(syscall.SIGSEGV) && repeated > 0 {
		require.Equal(p.w, "event: RDMA_CM_EVENT_REJECTED, error: 6\n", p.out.String())
		p.w.Log("cmtime has met a request that had been repeated, after the connection had ended")
		return
	}
	require.Equal(p.w, int(syscall.SIGKILL), exit.Signal, "%s", p.out)
	require.Empty(p.w, p.out.String())
}

func TestReject(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		stop := w.capture(t)
		p := port()
		s := w.peer("reject", "-b", w.ours, "-p", p).until("listening")
		code, out := w.c("ucmatose", "-s", w.ours, "-p", p).fails()
		require.Equal(t, 28, code, out) // consumer reject
		require.Contains(t, out, "RDMA_CM_EVENT_REJECTED, error: 28")
		s.ends()
		stop("ConnectReject")
	})
}

// Nobody listens on the port that is asked for; on the other side of the wire is one who would know.
func TestNoListener(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		stop := w.capture(t)
		require.Contains(t, w.peer("refused", "-s", w.kernel, "-p", port()).ends(), "refused, reason 8\n")

		other := w.peer("reject", "-b", w.ours, "-p", port()).until("listening")
		code, out := w.c("ucmatose", "-s", w.ours, "-p", port()).fails()
		require.Equal(t, 8, code, out)
		require.Contains(t, out, "RDMA_CM_EVENT_REJECTED, error: 8")
		require.NoError(t, other.Kill())
		_ = other.Wait()
		stop("ConnectRequest", "ConnectReject")
	})
}

// The kernel's server is killed before it has answered: the kernel answers for it.
func TestServerKilled(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		p := port()
		s := w.listens(w.start(w.g.Command(w.ctx, "ucmatose", "-b", w.kernel.String(), "-p", strconv.Itoa(p))), p)
		require.NoError(t, s.Signal(syscall.SIGSTOP))
		c := w.peer("refused", "-s", w.kernel, "-p", p)
		time.Sleep(time.Second)
		require.NoError(t, s.Kill())
		require.Contains(t, c.ends(), "refused, reason")
		_ = s.Wait()
	})
}
