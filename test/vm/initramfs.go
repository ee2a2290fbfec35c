package vm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// early are the modules that it takes to reach the host's files and the runner. What is loaded at boot comes from the
// archive, since reading it from the host's files takes seconds; all others are to be had there.
var early = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}

// getInitramfs returns the archive that a kernel boots with: the agent as /init, and modules. It is named
// by its content, so that an agent that has changed makes another.
func getInitramfs(ctx context.Context, k *kernel, more []string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	agent, err := buildAgent(ctx, cache)
	if err != nil {
		return "", err
	}
	modules, err := closure(k.modules, append(append([]string(nil), early...), more...))
	if err != nil {
		return "", err
	}
	var a archive
	a.dir("dev")
	a.dir("proc")
	a.dir("modules")
	a.device("dev/console", 5, 1)
	a.file("init", 0o755, agent)
	var list []string
	for _, m := range modules {
		content, err := os.ReadFile(filepath.Join(k.modules, m))
		if err != nil {
			return "", err
		}
		a.file("modules/"+filepath.Base(m), 0o644, content)
		list = append(list, filepath.Base(m))
	}
	a.file("modules.list", 0o644, []byte(strings.Join(list, "\n")+"\n"))
	content := a.close()
	path := filepath.Join(cache, "initramfs-"+hash(content)+".cpio")
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil {
		return path, nil
	}
	if err := put(path, content, 0o644); err != nil {
		return "", err
	}
	prune(cache)
	return path, nil
}

// prune removes archives that no run has used for a week.
func prune(cache string) {
	old, err := filepath.Glob(filepath.Join(cache, "initramfs-*.cpio"))
	if err != nil {
		return
	}
	for _, path := range old {
		if modified(path) < time.Now().Add(-7*24*time.Hour).UnixNano() {
			_ = os.Remove(path)
		}
	}
}

// buildAgent compiles the agent. The go command does nothing when the program is as its sources are.
func buildAgent(ctx context.Context, cache string) ([]byte, error) {
	unlock, err := lock("agent")
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(cache, "agent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path,
		"github.com/go-rdma/rdma/test/vm/agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("vm: build the agent: %w\n%s", err, out)
	}
	return os.ReadFile(path)
}

// closure returns the files of the modules and of all that they depend on, the latter first.
func closure(dir string, names []string) ([]string, error) {
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	depends := make(map[string][]string)
	byName := make(map[string]string)
	for s := bufio.NewScanner(f); s.Scan(); {
		path, deps, ok := strings.Cut(s.Text(), ":")
		if !ok {
			continue
		}
		depends[path] = strings.Fields(deps)
		byName[moduleName(path)] = path
	}
	isBuiltin := make(map[string]bool)
	for path := range strings.FieldsSeq(string(builtin)) {
		isBuiltin[moduleName(path)] = true
	}
	var order []string
	seen := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		if seen[path] {
			return
		}
		seen[path] = true
		for _, d := range depends[path] {
			visit(d)
		}
		order = append(order, path)
	}
	for _, name := range names {
		name = moduleName(name)
		if path := byName[name]; path != "" {
			visit(path)
		} else if !isBuiltin[name] {
			return nil, fmt.Errorf("vm: the kernel has no module %s", name)
		}
	}
	return order, nil
}

func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// archive is a cpio archive in the "new ASCII" format, as the kernel unpacks it.
// See Documentation/driver-api/early-userspace/buffer-format.rst of the kernel.
type archive struct {
	buf bytes.Buffer
	ino uint32
}

func (a *archive) entry(name string, mode uint32, major, minor uint32, content []byte) {
	a.ino++
	fmt.Fprintf(&a.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

func (a *archive) dir(name string) { a.entry(name, 0o040755, 0, 0, nil) }

func (a *archive) file(name string, perm uint32, content []byte) {
	a.entry(name, 0o100000|perm, 0, 0, content)
}

func (a *archive) device(name string, major, minor uint32) {
	a.entry(name, 0o020600, major, minor, nil)
}

func (a *archive) close() []byte {
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.buf.Bytes()
}
