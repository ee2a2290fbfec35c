package rdmanet_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

func init() { roles["actor"] = actorRole }

// actorRole is a process that serves and dials as its standard input says. Each connection it dials
// asks for echoes of random bytes, without end, and checks them.
//
//	dial ID ADDR    dialed ID, or failed ID ERROR
//	count ID        count ID ROUNDS
//	close ID        closed ID ERROR
//	pace MS         nothing; so long is the pause between rounds from then on
//
// broken ID ERROR comes when a connection that is not closed ends.
func actorRole() error {
	addr := "127.0.0.1:0"
	if len(os.Args) > 1 {
		addr = os.Args[1]
	}
	begin := time.Now()
	l, err := rdmanet.Listen("rdma", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(l.Addr(), time.Since(begin).Milliseconds())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	a := &actor{talks: make(map[string]*talk)}
	a.pace.Store(3)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, rest, _ := strings.Cut(in.Text(), " ")
		id, arg, _ := strings.Cut(rest, " ")
		switch verb {
		case "dial":
			go a.dial(id, arg)
		case "count":
			a.say("count %s %d", id, a.talk(id).rounds.Load())
		case "pace":
			ms, err := strconv.ParseInt(id, 10, 64)
			if err != nil {
				return err
			}
			a.pace.Store(ms)
		case "close":
			t := a.talk(id)
			t.closing.Store(true)
			<-t.quit
			a.say("closed %s %v", id, t.Close())
		}
	}
	return nil
}

type actor struct {
	out   sync.Mutex
	mu    sync.Mutex
	talks map[string]*talk
	pace  atomic.Int64 // ms
}

// talk is one dialed connection.
type talk struct {
	net.Conn
	rounds  atomic.Int64
	closing atomic.Bool
	quit    chan struct{}
}

func (a *actor) say(format string, args ...any) {
	a.out.Lock()
	defer a.out.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

func (a *actor) talk(id string) *talk {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.talks[id]
}

func (a *actor) dial(id, addr string) {
	c, err := rdmanet.DialTimeout("rdma", addr, 20*time.Second)
	if err != nil {
		kind := "other"
		if errors.Is(err, syscall.ECONNREFUSED) {
			kind = "refused"
		}
		a.say("failed %s %s %v", id, kind, err)
		return
	}
	t := &talk{Conn: c, quit: make(chan struct{})}
	a.mu.Lock()
	a.talks[id] = t
	a.mu.Unlock()
	a.say("dialed %s", id)
	defer close(t.quit)
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(len(id))))
	out, in := make([]byte, 20_000), make([]byte, 20_000)
	for !t.closing.Load() {
		n := 1 + r.IntN(len(out))
		for i := range n {
			out[i] = byte(r.Uint32())
		}
		if _, err = t.Write(out[:n]); err == nil {
			if _, err = io.ReadFull(t, in[:n]); err == nil && !bytes.Equal(out[:n], in[:n]) {
				err = errors.New("other bytes came back")
			}
		}
		if err != nil {
			kind := "other"
			if errors.Is(err, syscall.ECONNRESET) {
				kind = "reset"
			}
			a.say("broken %s %s %v", id, kind, err)
			return
		}
		t.rounds.Add(1)
		time.Sleep(time.Duration(a.pace.Load()) * time.Millisecond)
	}
}

// actorProcess is such a process, as the test sees it.
type actorProcess struct {
	cmd   *exec.Cmd
	addr  string
	took  string // ms that listening took
	in    io.WriteCloser
	ended chan struct{}

	stopped bool
	since   time.Time // of being stopped

	mu    sync.Mutex
	heard []string
	more  chan struct{} // closed and made anew when something was heard
}

func startActor(t testing.TB, addr ...string) *actorProcess {
	t.Helper()
	p := &actorProcess{cmd: exec.Command("/proc/self/exe", addr...), ended: make(chan struct{}), more: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleEnv+"=actor")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	sc := bufio.NewScanner(out)
	ok := sc.Scan()
	p.addr, p.took, _ = strings.Cut(sc.Text(), " ")
	go func() {
		defer close(p.ended)
		for sc.Scan() {
			p.mu.Lock()
			p.heard = append(p.heard, sc.Text())
			close(p.more)
			p.more = make(chan struct{})
			p.mu.Unlock()
		}
		p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	require.True(t, ok, "the process did not start")
	return p
}

func (p *actorProcess) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

func (p *actorProcess) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	p.stopped, p.since = true, time.Now()
}

func (p *actorProcess) goOn(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	p.stopped = false
}

func (p *actorProcess) do(t testing.TB, format string, args ...any) {
	t.Helper()
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	require.NoError(t, err)
}

// wait takes the first line that begins with one of the prefixes, and returns it.
func (p *actorProcess) wait(t testing.TB, d time.Duration, prefixes ...string) string {
	t.Helper()
	timeout := time.After(d)
	for {
		p.mu.Lock()
		for i, l := range p.heard {
			for _, prefix := range prefixes {
				if strings.HasPrefix(l, prefix) {
					p.heard = append(p.heard[:i:i], p.heard[i+1:]...)
					p.mu.Unlock()
					return l
				}
			}
		}
		more, heard := p.more, fmt.Sprint(p.heard)
		p.mu.Unlock()
		select {
		case <-more:
		case <-timeout:
			// Its stacks tell where it hangs.
			p.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case <-p.ended:
			case <-time.After(2 * time.Second):
			}
			require.FailNow(t, "nothing heard", "%q within %v, only %s", prefixes, d, heard)
		}
	}
}

// unasked returns what was heard and not waited for.
func (p *actorProcess) unasked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.heard...)
}
