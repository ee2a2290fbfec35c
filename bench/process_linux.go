package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is the processor time that a process has used, all its threads together.
func processorTime(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED, to the nanosecond; clock_getcpuclockid(3) of glibc makes the same
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &ts); err != nil {
		return 0, fmt.Errorf("clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// usage reads what the system says of a process (proc(5)).
func (u *usage) read(pid int) error {
	cpu, err := processorTime(pid) // first, for looking takes time too
	if err != nil {
		return err
	}
	u.CPU = cpu
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		n, _ := strconv.ParseInt(f[0], 10, 64) // those that are wanted are numbers
		switch key {
		case "RssAnon", "RssFile", "RssShmem":
			u.Resident += n << 10
		case "VmPTE":
			u.PageTables = n << 10
		case "Threads":
			u.Threads = int(n)
		}
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return err
	}
	u.Descriptors = len(fds)
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return err
	}
	u.Mappings = bytes.Count(maps, []byte("\n"))
	return nil
}

// sysctls are what the machine is set to, of those that matter here.
func sysctls() string {
	var all []string
	for _, name := range []string{
		"net.core.rmem_default", "net.core.rmem_max", "net.core.wmem_max", "net.core.busy_poll",
		"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "net.ipv4.tcp_congestion_control",
	} {
		b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		if err != nil {
			continue // not every kernel has each
		}
		all = append(all, name+" "+strings.Join(strings.Fields(string(b)), " "))
	}
	return strings.Join(all, ", ")
}
