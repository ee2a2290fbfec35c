package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/test/vm/internal/proto"
)

// port is the only port of the only virtio-serial device. It is read and written with calls
// that block: the runner is connected before the guest exists and leaves after it.
const port = "/dev/vport0p1"

type agent struct {
	mu    sync.Mutex
	stdio map[key]chan net.Conn // of commands whose streams have begun to arrive
}

type key struct {
	kind string
	id   uint64
}

func serve() error {
	for name, value := range map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb",
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	for _, name := range []string{"rdmavm_modules", "rdmavm_name"} {
		_ = os.Unsetenv(name)
	}
	f, err := openPort()
	if err != nil {
		return err
	}
	session, err := yamux.Server(f, proto.Mux())
	if err != nil {
		return err
	}
	note("serves")
	a := &agent{stdio: make(map[key]chan net.Conn)}
	for {
		stream, err := session.Accept()
		if err != nil {
			if errors.Is(err, io.EOF) { // the runner is gone
				return nil
			}
			return err
		}
		go a.stream(stream)
	}
}

// openPort waits for the port, which appears shortly after the driver.
func openPort() (*os.File, error) {
	for end := time.Now().Add(proto.Patience); ; time.Sleep(time.Millisecond) {
		fd, err := unix.Open(port, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), port), nil
		}
		if !errors.Is(err, unix.ENOENT) || time.Now().After(end) {
			return nil, fmt.Errorf("open %s: %w", port, err)
		}
	}
}

func (a *agent) stream(s net.Conn) {
	var hello proto.Hello
	if err := proto.Receive(s, &hello); err != nil {
		_ = s.Close()
		return
	}
	switch hello.Kind {
	case proto.KindInfo:
		defer s.Close()
		var now unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
		_ = proto.Send(s, proto.Info{Kernel: release(), Uptime: time.Duration(now.Nano())})
	case proto.KindRun:
		defer s.Close()
		a.run(s, hello.ID)
	case proto.KindStdin, proto.KindStdout, proto.KindStderr:
		a.slot(key{hello.Kind, hello.ID}) <- s
	default:
		_ = s.Close()
	}
}

// slot is where a command and a stream of its standard files meet, whichever arrives first.
func (a *agent) slot(k key) chan net.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.stdio[k]
	if c == nil {
		c = make(chan net.Conn, 1)
		a.stdio[k] = c
	}
	return c
}

func (a *agent) take(kind string, id uint64) net.Conn {
	k := key{kind, id}
	s := <-a.slot(k)
	a.mu.Lock()
	delete(a.stdio, k)
	a.mu.Unlock()
	return s
}

// run executes one command and tells how it went on control.
func (a *agent) run(control net.Conn, id uint64) {
	var c proto.Command
	if err := proto.Receive(control, &c); err != nil {
		return
	}
	var stdin, stdout, stderr net.Conn
	if c.Stdin {
		stdin = a.take(proto.KindStdin, id)
		defer stdin.Close()
	}
	if c.Stdout {
		stdout = a.take(proto.KindStdout, id)
		defer stdout.Close()
	}
	if c.Stderr {
		stderr = a.take(proto.KindStderr, id)
		defer stderr.Close()
	}
	args := c.Args
	if c.Netns != "" {
		args = append([]string{"ip", "netns", "exec", c.Netns}, args...)
	}
	if len(args) == 0 {
		_ = proto.Send(control, proto.Started{Err: "no command"})
		return
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = c.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/tmp"
	}
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if stdout != nil {
		cmd.Stdout = stdout
	}
	if stderr != nil {
		cmd.Stderr = stderr
	}
	if c.StderrToStdout {
		cmd.Stderr = cmd.Stdout
	}
	var input io.WriteCloser
	if stdin != nil {
		w, err := cmd.StdinPipe()
		if err != nil {
			_ = proto.Send(control, proto.Started{Err: err.Error()})
			return
		}
		input = w
	}
	if err := cmd.Start(); err != nil {
		_ = proto.Send(control, proto.Started{Err: err.Error()})
		return
	}
	if err := proto.Send(control, proto.Started{PID: cmd.Process.Pid}); err != nil {
		return
	}
	if input != nil {
		go func() {
			_, _ = io.Copy(input, stdin)
			_ = input.Close()
		}()
	}
	go signals(control, cmd.Process)
	_ = proto.Send(control, exited(cmd.Wait()))
}

// signals passes on the runner's signals until it has closed the stream.
func signals(control net.Conn, p *os.Process) {
	for {
		var s proto.Signal
		if err := proto.Receive(control, &s); err != nil {
			return
		}
		if s.Group {
			_ = syscall.Kill(-p.Pid, syscall.Signal(s.Signal))
		} else {
			_ = p.Signal(syscall.Signal(s.Signal))
		}
	}
}

func exited(err error) proto.Exited {
	if err == nil {
		return proto.Exited{}
	}
	if e := new(exec.ExitError); errors.As(err, &e) {
		if ws, ok := e.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return proto.Exited{Code: -1, Signal: int(ws.Signal())}
		}
		return proto.Exited{Code: e.ExitCode()}
	}
	return proto.Exited{Code: -1, Err: err.Error()}
}
