package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// builds are the programs that were built for a guest: each once.
type builds struct {
	mu   sync.Mutex
	dir  string
	made map[string]*build
}

type build struct {
	once sync.Once
	path string
	err  error
}

// Build compiles a command for the guest and returns its path, which is the same on the host and in the guest. flags are those
// of go build. The program is built once for each guest and set of arguments.
func (g *Guest) Build(ctx context.Context, pkg string, flags ...string) (string, error) {
	return g.bins.get(ctx, append(append([]string{"build"}, flags...), pkg))
}

// BuildTest compiles the tests of a package, as go test -c does.
func (g *Guest) BuildTest(ctx context.Context, pkg string, flags ...string) (string, error) {
	return g.bins.get(ctx, append(append([]string{"test", "-c"}, flags...), pkg))
}

func (b *builds) get(ctx context.Context, args []string) (string, error) {
	b.mu.Lock()
	if b.made == nil {
		dir, err := os.MkdirTemp("", "rdma-vm-bin-")
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			b.mu.Unlock()
			return "", err
		}
		b.dir, b.made = dir, make(map[string]*build)
	}
	key := strings.Join(args, "\x00")
	one := b.made[key]
	if one == nil {
		one = &build{path: filepath.Join(b.dir, filepath.Base(args[len(args)-1])+"-"+strconv.Itoa(len(b.made)))}
		b.made[key] = one
	}
	b.mu.Unlock()
	one.once.Do(func() {
		full := append([]string{args[0], "-o", one.path}, args[1:]...)
		if out, err := exec.CommandContext(ctx, "go", full...).CombinedOutput(); err != nil {
			one.err = fmt.Errorf("vm: go %s: %w\n%s", strings.Join(full, " "), err, out)
		}
	})
	return one.path, one.err
}

func (b *builds) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
	b.made, b.dir = nil, ""
}
