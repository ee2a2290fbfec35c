package interop

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/vm"
)

// patience is for one step of a peer. Emulated processors may take a hundred times what real ones do.
const patience = 3 * time.Minute

// proc is a program that runs in the guest. A test that fails logs what it wrote; what still runs when a
// test ends is killed.
type proc struct {
	t    *testing.T
	name string
	cmd  *vm.Cmd
	out  output
	done chan struct{}
	err  error // valid when done is closed

	device string // of a Go program
}

type output struct {
	mu    sync.Mutex
	b     bytes.Buffer
	grown chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.grown)
	o.grown = make(chan struct{})
	return o.b.Write(b)
}

func (o *output) get() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String(), o.grown
}

// c starts a program in the initial namespace, where the RDMA device is. Its output comes by lines.
func (w *world) c(t *testing.T, env []string, args ...string) *proc {
	t.Helper()
	return w.start(t, "", env, append([]string{"stdbuf", "-oL"}, args...))
}

// goAt starts one of this directory's programs at the Go end of a site. What statistics it prints must be of the device
// that it is to use.
func (w *world) goAt(t *testing.T, s site, args ...string) *proc {
	t.Helper()
	args[0] = filepath.Join(w.bin, args[0])
	p := w.start(t, s.netns, []string{"RDMANET_DEVICE=" + w.device}, args)
	p.device = w.device
	return p
}

func (w *world) start(t *testing.T, netns string, env, args []string) *proc {
	t.Helper()
	p := &proc{t: t, name: strings.Join(args, " "), done: make(chan struct{})}
	p.out.grown = make(chan struct{})
	p.cmd = w.g.Command(t.Context(), args[0], args[1:]...).In(netns)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, &p.out, &p.out
	require.NoError(t, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Kill()
			<-p.done
		}
		if t.Failed() {
			out, _ := p.out.get()
			t.Logf("%s: %v\n%s", p.name, p.err, out)
		}
	})
	return p
}

// says waits until the program has written what.
func (p *proc) says(what string) {
	p.t.Helper()
	limit := time.After(patience)
	for {
		out, grown := p.out.get()
		if strings.Contains(out, what) {
			return
		}
		select {
		case <-grown:
		case <-p.done:
			if out, _ := p.out.get(); strings.Contains(out, what) {
				return
			}
			require.FailNow(p.t, fmt.Sprintf("%s ended without saying %q", p.name, what))
		case <-limit:
			require.FailNow(p.t, fmt.Sprintf("%s does not say %q", p.name, what))
		}
	}
}

// ends waits for the program's end and returns what it wrote.
func (p *proc) ends() (string, error) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.FailNow(p.t, p.name+" does not end")
	}
	out, _ := p.out.get()
	return out, p.err
}

// succeeds waits for the program's end with status 0 and returns what it wrote.
func (p *proc) succeeds() string {
	p.t.Helper()
	out, err := p.ends()
	require.NoError(p.t, err, out)
	for _, m := range providerOf.FindAllStringSubmatch(out, -1) {
		require.Equal(p.t, p.device, m[1], out)
	}
	return out
}

// providerOf finds the provider in statistics, as JSON and as %+v print them.
var providerOf = regexp.MustCompile(`\bProvider"?:"?(\w+)`)

// fails waits for the program's end with another status.
func (p *proc) fails() string {
	p.t.Helper()
	out, err := p.ends()
	exit := new(vm.ExitError)
	require.ErrorAs(p.t, err, &exit, out)
	return out
}

// kill ends the program by SIGKILL and returns when that was.
func (p *proc) kill() time.Time {
	p.t.Helper()
	at := time.Now()
	require.NoError(p.t, p.cmd.Kill())
	_, err := p.ends()
	exit := new(vm.ExitError)
	if !errors.As(err, &exit) || exit.Signal != 9 {
		require.FailNow(p.t, fmt.Sprintf("%s was to be killed, but: %v", p.name, err))
	}
	return at
}
