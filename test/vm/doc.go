// Package vm runs programs in a Linux guest whose kernel has Soft-RoCE (rdma_rxe), which the kernel of
// the host need not have.
//
// A guest is Debian's plain kernel under QEMU, emulated in software, so neither root nor KVM is needed. Its
// root is the host's, read-only, under a layer of memory: whatever is installed or built on the host runs
// there, and what it writes to its root is lost at the end. Commands are run as with os/exec:
//
//	g, err := vm.Start(ctx, vm.Config{})
//	if err != nil { ... }
//	defer g.Close()
//	out, err := g.Command(ctx, "uname", "-r").Output()
//
// Everything runs as root of the guest. In /run/share of the guest is the directory [Guest.Share] of the host,
// both of which may be written. Package vmtest has what tests need: one guest for all tests of a
// package, and the reasons to skip. README.md tells how to see what a guest does.
package vm
