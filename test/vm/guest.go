package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/test/vm/internal/proto"
)

// Config says what guest to boot. The zero value is a good one.
type Config struct {
	Name      string        // host name, and what errors call it; "guest" if empty
	MemoryMB  int           // 2048 if 0; the host gives it as the guest uses it
	CPUs      int           // 2 if 0
	Modules   []string      // to load at boot, besides those of [RDMAModules]
	NoRDMA    bool          // leave out RDMAModules
	BootLimit time.Duration // two minutes if 0
	HangLimit time.Duration // how long it may not answer; two minutes if 0
	Console   io.Writer     // also gets what the kernel says, as it says it
	Append    string        // added to the kernel's command line
	Share     string        // a directory of the host's to use as [Guest.Share], which Close does not remove then
	Machine   string        // QEMU's machine; "q35" if empty
	Devices   []string      // more of QEMU's arguments
	PMem      []Image       // persistent memory, see [Guest.MountPMem]
	Disks     []Image       // see [Guest.MountDisk]

	accel   string   // what QEMU runs it on
	network *os.File // one end of the wire to another guest
	mac     string
}

// RDMAModules are loaded at boot. rdma_rxe asks for crc32 as it makes a device, which only crc32_generic provides.
var RDMAModules = []string{"crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "veth"}

// Guest is a running guest. Its methods may be called by several goroutines.
type Guest struct {
	Name  string
	Accel string // QEMU's accelerator: kvm or tcg
	Info  proto.Info
	Share string // this directory of the host is /run/share in the guest; Close removes it, unless it came with the Config
	Wire  Addrs  // of a guest of a Pair

	temporary string // the share, if it was made here

	qemu    *exec.Cmd
	session *yamux.Session
	console *console
	nextID  atomic.Uint64
	peers   atomic.Int32
	bins    builds

	mu   sync.Mutex
	err  *GuestError
	done chan struct{} // closed when err is set and QEMU is gone
	kill func(error)
}

// Start boots a guest, which lives until Close or until its kernel ends. ctx bounds the boot only.
func Start(ctx context.Context, cfg Config) (*Guest, error) {
	k, initramfs, err := prepare(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	cfg.defaults()
	g := &Guest{Name: cfg.Name, Accel: cfg.accel, Share: cfg.Share, done: make(chan struct{}), console: newConsole(cfg.Console)}
	if g.Share == "" {
		if g.Share, err = os.MkdirTemp("", "rdma-vm-"); err != nil {
			return nil, err
		}
		g.temporary = g.Share
	}
	if err := g.launch(&cfg, k, initramfs); err != nil {
		g.removeShare()
		return nil, err
	}
	if err := g.boot(ctx, &cfg); err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

// Check fetches and builds what guests need, without starting one. An [*UnavailableError] says why this machine
// cannot run any.
func Check(ctx context.Context) error {
	_, _, err := prepare(ctx, new(Config))
	return err
}

func prepare(ctx context.Context, cfg *Config) (k *kernel, initramfs string, err error) {
	if err := Require(ctx, Needed...); err != nil {
		return nil, "", err
	}
	if k, err = getKernel(ctx); err != nil {
		return nil, "", err
	}
	if cfg.accel, err = accelerator(ctx, k); err != nil {
		return nil, "", err
	}
	modules := cfg.Modules
	if !cfg.NoRDMA {
		modules = append(append([]string(nil), RDMAModules...), modules...)
	}
	if more := cfg.storage(); len(more) != 0 {
		if err := Require(ctx, toFormat...); err != nil {
			return nil, "", err
		}
		modules = append(modules[:len(modules):len(modules)], more...)
	}
	initramfs, err = getInitramfs(ctx, k, modules)
	return k, initramfs, err
}

func (c *Config) defaults() {
	if c.Name == "" {
		c.Name = "guest"
	}
	if c.MemoryMB == 0 {
		c.MemoryMB = 2048
	}
	if c.CPUs == 0 {
		c.CPUs = 2
	}
	if c.BootLimit == 0 {
		c.BootLimit = 2 * time.Minute
	}
	if c.HangLimit == 0 {
		c.HangLimit = proto.Patience
	}
	if c.Machine == "" {
		c.Machine = "q35" // microvm has no clock to calibrate the TSC by and hangs on a busy host
	}
}

// arguments are QEMU's. Descriptor 3 is the agent's port, 4 the wire to another guest.
func (c *Config) arguments(k *kernel, initramfs, share string) ([]string, error) {
	kernel := []string{
		"console=ttyS0", "quiet", "panic=-1", "oops=panic", "reboot=t", "mitigations=off",
		"random.trust_cpu=on", "rcupdate.rcu_expedited=1", "audit=0", "selinux=0", "apparmor=0",
		"rdmavm_modules=" + k.modules, "rdmavm_name=" + c.Name,
	}
	if c.accel == accelTCG {
		kernel = append(kernel, clock()...) // with KVM the guest has the host's clock
	}
	kernel = append(kernel, c.Append)
	board := c.Machine
	if len(c.PMem) != 0 {
		board += ",nvdimm=on"
	}
	args := append(machine(c.accel),
		"-M", board, "-smp", strconv.Itoa(c.CPUs),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", k.image, "-initrd", initramfs, "-append", strings.Join(kernel, " "),
		"-chardev", "socket,id=agent,fd=3",
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=agent",
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
		"-fsdev", "local,id=share,path="+share+",security_model=none",
		"-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
	)
	if c.network != nil {
		args = append(args, "-netdev", "socket,id=wire,fd=4", "-device", "virtio-net-pci,netdev=wire,mac="+c.mac)
	}
	storage, err := c.attach()
	return append(append(args, storage...), c.Devices...), err
}

// launch starts QEMU, which ends with this process, however that ends.
func (g *Guest) launch(cfg *Config, k *kernel, initramfs string) error {
	if strings.ContainsAny(k.modules+cfg.Name, " \"',") || strings.ContainsRune(g.Share, ',') {
		return fmt.Errorf("vm: %q, %q: no blank, quote or comma may be in a name on QEMU's command line", k.modules, g.Share)
	}
	args, err := cfg.arguments(k, initramfs, g.Share)
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "agent"), os.NewFile(uintptr(pair[1]), "agent")
	defer ours.Close() // net.FileConn duplicates it
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return fmt.Errorf("vm: %w", err)
	}
	mux := proto.Mux()
	mux.ConnectionWriteTimeout = max(cfg.BootLimit, cfg.HangLimit) // of the first message too, which waits for the boot
	if g.session, err = yamux.Client(conn, mux); err != nil {
		_ = conn.Close()
		return fmt.Errorf("vm: %w", err)
	}
	g.qemu = exec.Command("qemu-system-x86_64", args...)
	g.qemu.ExtraFiles = []*os.File{theirs}
	if cfg.network != nil {
		g.qemu.ExtraFiles = append(g.qemu.ExtraFiles, cfg.network)
	}
	g.qemu.Stdout, g.qemu.Stderr = g.console, g.console
	g.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	reasons := make(chan error, 1) // the first of several counts
	g.kill = func(err error) {
		select {
		case reasons <- err:
		default:
		}
		_ = g.qemu.Process.Kill()
	}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread ends that started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.qemu.Start()
		started <- err
		if err == nil {
			g.ended(g.qemu.Wait(), reasons)
		}
	}()
	if err := <-started; err != nil {
		_ = g.session.Close()
		return fmt.Errorf("vm: %w", err)
	}
	return nil
}

// ended records why QEMU is gone.
func (g *Guest) ended(status error, reasons chan error) {
	var err error
	select {
	case err = <-reasons:
	default:
	}
	log := g.console.String()
	if err == nil || errors.Is(err, ErrHung) {
		switch {
		case strings.Contains(log, "Kernel panic - not syncing"):
			err = ErrPanic
		case err != nil:
		case status != nil:
			err = fmt.Errorf("%w: QEMU: %w", ErrExited, status)
		default:
			err = ErrExited
		}
	}
	g.mu.Lock()
	g.err = &GuestError{Name: g.Name, Err: err, Console: tail(log, 16<<10)}
	g.mu.Unlock()
	_ = g.session.Close()
	g.removeShare()
	close(g.done)
}

func (g *Guest) removeShare() {
	if g.temporary != "" {
		_ = os.RemoveAll(g.temporary)
	}
}

// boot waits for the agent and prepares the guest.
func (g *Guest) boot(ctx context.Context, cfg *Config) error {
	late := fmt.Errorf("%w (%v)", ErrBoot, cfg.BootLimit)
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.BootLimit, late)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { g.kill(context.Cause(ctx)) })
	defer stop()
	info, err := g.open(proto.KindInfo, 0)
	if err == nil {
		err = proto.Receive(info, &g.Info)
		_ = info.Close()
	}
	if err != nil {
		return g.reason(err)
	}
	if !stop() { // killed already
		return g.reason(context.Cause(ctx))
	}
	go g.watch(cfg.HangLimit)
	return nil
}

// watch asks for signs of life, so that a command in a guest that hangs ends with its console.
func (g *Guest) watch(limit time.Duration) {
	t := time.NewTicker(limit / 6)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-t.C:
		}
		hung := time.AfterFunc(limit, func() { g.kill(fmt.Errorf("%w for %v", ErrHung, limit)) })
		_, err := g.session.Ping()
		if hung.Stop() && err != nil {
			g.kill(fmt.Errorf("%w: %w", ErrHung, err))
			return
		}
	}
}

func (g *Guest) open(kind string, id uint64) (net.Conn, error) {
	s, err := g.session.OpenStream()
	if err != nil {
		return nil, g.reason(err)
	}
	if err := proto.Send(s, proto.Hello{Kind: kind, ID: id}); err != nil {
		_ = s.Close()
		return nil, g.reason(err)
	}
	return s, nil
}

// reason replaces the error of a stream by that of the guest, if it is dead or about to be.
func (g *Guest) reason(err error) error {
	select {
	case <-g.done:
	case <-time.After(5 * time.Second): // a guest that dies closes its streams first
		return fmt.Errorf("vm: %s: %w", g.Name, err)
	}
	return g.Err()
}

// Done is closed when the guest is no more.
func (g *Guest) Done() <-chan struct{} { return g.done }

// Err returns why the guest is no more, or nil as long as it lives.
func (g *Guest) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		return nil
	}
	return g.err
}

// Console returns what the guest's kernel has said so far.
func (g *Guest) Console() string { return g.console.String() }

// Close ends the guest and removes its share. What runs in it fails with [ErrClosed].
func (g *Guest) Close() error {
	g.kill(ErrClosed)
	<-g.done
	return nil
}

// ReadFile returns the content of a file of the guest.
func (g *Guest) ReadFile(ctx context.Context, path string) ([]byte, error) {
	return g.Command(ctx, "cat", "--", path).Output()
}

// WriteFile makes a file in the guest.
func (g *Guest) WriteFile(ctx context.Context, path string, content []byte, perm os.FileMode) error {
	c := g.Command(ctx, "sh", "-c", `cat >"$1" && chmod "$2" "$1"`, "sh", path, fmt.Sprintf("%o", perm.Perm()))
	c.Stdin = strings.NewReader(string(content))
	_, err := c.Output()
	return err
}

// Script runs a shell script and returns what it printed. It ends at the first command that
// fails, and is the short way to move interfaces about.
func (g *Guest) Script(ctx context.Context, script string) (string, error) {
	out, err := g.Command(ctx, "sh", "-euc", script).Output()
	return string(out), err
}

// SharePath returns how the guest names a file of the directory Share.
func (g *Guest) SharePath(name string) string { return filepath.Join("/run/share", name) }
