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

// builds are the programs that were built for a guest, each once, in its memory.
type builds struct {
	mu   sync.Mutex
	made map[string]*build
}

type build struct {
	once sync.Once
	name string
	err  error
}

// programs is where they are in the guest. From the share each start would read its pages through 9p again, which takes longer than most of
// what tests do.
const programs = "/run/programs"

// Build compiles a command for the guest and returns its path there, which is in its memory. flags are those of go build. The program is
// built once for each guest and set of arguments.
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
	target := filepath.Join(programs, one.name)
	one.once.Do(func() { one.err = g.bring(ctx, args, one.name, target) })
	return target, one.err
}

// bring compiles a program and takes it into the guest's memory.
func (g *Guest) bring(ctx context.Context, args []string, name, target string) error {
	// Two guests may share a directory.
	dir, err := os.MkdirTemp(g.Share, "build-")
	if err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	if err := compile(ctx, args, filepath.Join(dir, name)); err != nil {
		return err
	}
	from := g.SharePath(filepath.Join(filepath.Base(dir), name))
	if out, err := g.Command(ctx, "sh", "-c", `mkdir -p "$2" && cp "$1" "$2"`, "sh", from, filepath.Dir(target)).CombinedOutput(); err != nil {
		return fmt.Errorf("vm: %s: %w\n%s", target, err, out)
	}
	return nil
}

func compile(ctx context.Context, args []string, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-ldflags") }) {
		args = slices.Insert(args, 1, "-ldflags=-s -w") // it comes over 9p, and takes memory
	}
	args = append([]string{args[0], "-o", target}, args[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("vm: go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
