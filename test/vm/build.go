package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// builds are the programs that were built for a guest, each once, in its share.
type builds struct {
	mu   sync.Mutex
	made map[string]*build
}

type build struct {
	once sync.Once
	name string
	err  error
}

// Build compiles a command for the guest and returns its path there. flags are those of go build. The program is built
// once for each guest and set of arguments.
func (g *Guest) Build(ctx context.Context, pkg string, flags ...string) (string, error) {
	return g.build(ctx, append(append([]string{"build"}, flags...), pkg))
}

// BuildTest compiles the tests of a package, as go test -c does.
func (g *Guest) BuildTest(ctx context.Context, pkg string, flags ...string) (string, error) {
	return g.build(ctx, append(append([]string{"test", "-c"}, flags...), pkg))
}

func (g *Guest) build(ctx context.Context, args []string) (string, error) {
	b := &g.bins
	key := strings.Join(args, "\x00")
	b.mu.Lock()
	one := b.made[key]
	if one == nil {
		one = &build{name: "bin" + strconv.Itoa(len(b.made)) + "/" + filepath.Base(args[len(args)-1])}
		if args[0] == "test" {
			one.name += ".test"
		}
		if b.made == nil {
			b.made = make(map[string]*build)
		}
		b.made[key] = one
	}
	b.mu.Unlock()
	one.once.Do(func() { one.err = compile(ctx, args, filepath.Join(g.Share, one.name)) })
	return g.SharePath(one.name), one.err
}

func compile(ctx context.Context, args []string, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-ldflags") }) {
		args = slices.Insert(args, 1, "-ldflags=-s -w") // a guest reads every page of it over 9p
	}
	args = append([]string{args[0], "-o", target}, args[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("vm: go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
