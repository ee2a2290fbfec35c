package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The accelerators of QEMU: the processor's own virtualization, and emulation, which every machine has.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// accelEnv chooses one without a trial.
const accelEnv = "RDMA_VM_ACCEL"

// kvmLimit is for a kernel that finds no root and ends, which takes a second where KVM works. Machines are about whose /dev/kvm
// opens but whose guests fail at once, or never run: they are virtual themselves.
const kvmLimit = 10 * time.Second

// accelerator returns what guests run on here. What came of a trial is kept until the machine boots again.
func accelerator(ctx context.Context, k *kernel) (string, error) {
	switch a := os.Getenv(accelEnv); a {
	case "":
	case accelKVM, accelTCG:
		return a, nil
	default:
		return "", fmt.Errorf("vm: %s=%q: %s or %s", accelEnv, a, accelKVM, accelTCG)
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return accelTCG, nil
	}
	_ = f.Close()
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lock("accel")
	if err != nil {
		return "", err
	}
	defer unlock()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it every trial counts for all boots
	verdict := filepath.Join(cache, "accel")
	known := strings.TrimSpace(string(boot)) + " " + filepath.Base(filepath.Dir(k.image)) + " "
	if b, err := os.ReadFile(verdict); err == nil {
		if a, ok := strings.CutPrefix(string(b), known); ok && (a == accelKVM || a == accelTCG) {
			return a, nil
		}
	}
	a := accelTCG
	if kvmWorks(ctx, k) {
		a = accelKVM
	}
	if err := ctx.Err(); err != nil {
		return "", err // that was no trial
	}
	return a, put(verdict, []byte(known+a), 0o644)
}

// kvmWorks boots the kernel without anything else, which it must come to say.
func kvmWorks(ctx context.Context, k *kernel) bool {
	ctx, cancel := context.WithTimeout(ctx, kvmLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(machine(accelKVM), "-M", "q35", "-m", "256", "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", k.image, "-append", "console=ttyS0 panic=-1 reboot=t")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = cmd.Run() // what it said tells
	return strings.Contains(out.String(), "Kernel panic - not syncing")
}

// machine are QEMU's arguments for an accelerator.
func machine(accel string) []string {
	if accel == accelKVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}
