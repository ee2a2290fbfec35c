package vm

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Image is a file of the host's that a guest has as persistent memory or as a disk. It outlives the guest, however that
// ends, and may be given to the next one.
type Image struct {
	Path   string // made if it does not exist
	SizeMB int    // of a file that is made; 128 if 0
}

// toFormat is what MountPMem and MountDisk need on the host.
var toFormat = []Package{{"e2fsprogs", "/*bin/mkfs.ext4"}}

// create makes the file, if there is none, and returns its size in MiB.
func (i *Image) create() (int, error) {
	if strings.ContainsAny(i.Path, ",") {
		return 0, fmt.Errorf("vm: %q: no comma may be in a name on QEMU's command line", i.Path)
	}
	f, err := os.OpenFile(i.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, fmt.Errorf("vm: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("vm: %w", err)
	}
	if size := info.Size(); size != 0 {
		return int(size >> 20), nil
	}
	mb := i.SizeMB
	if mb == 0 {
		mb = 128
	}
	return mb, f.Truncate(int64(mb) << 20)
}

// storage returns the modules of the guest's images.
func (c *Config) storage() (modules []string) {
	if len(c.PMem) != 0 {
		modules = append(modules, "nfit", "nd_pmem", "ext4")
	}
	if len(c.Disks) != 0 {
		modules = append(modules, "virtio_blk", "ext4")
	}
	return modules
}

// attach makes the images and returns QEMU's arguments for them and for the guest's memory.
func (c *Config) attach() (args []string, err error) {
	memory := strconv.Itoa(c.MemoryMB)
	if n := len(c.PMem); n != 0 {
		most := c.MemoryMB
		for i := range c.PMem {
			mb, err := c.PMem[i].create()
			if err != nil {
				return nil, err
			}
			most += mb + 1024 // room to align it
			args = append(args, "-object", fmt.Sprintf("memory-backend-file,id=pmem%d,share=on,mem-path=%s,size=%dM", i, c.PMem[i].Path, mb),
				"-device", fmt.Sprintf("nvdimm,id=nvdimm%d,memdev=pmem%d", i, i))
		}
		memory += fmt.Sprintf(",slots=%d,maxmem=%dM", n, most)
	}
	for i := range c.Disks {
		if _, err := c.Disks[i].create(); err != nil {
			return nil, err
		}
		args = append(args, "-drive", fmt.Sprintf("if=none,id=disk%d,format=raw,file=%s", i, c.Disks[i].Path),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d", i))
	}
	return append([]string{"-m", memory}, args...), nil
}

// mountImage mounts a file system, which it makes first if there is none.
func (g *Guest) mountImage(ctx context.Context, device, dir, options string) error {
	_, err := g.Script(ctx, fmt.Sprintf(`
blkid -p %[1]s >/dev/null || mkfs.ext4 -q -b 4096 %[1]s
mkdir -p %[2]s
mount -t ext4 -o %[3]s %[1]s %[2]s`, device, dir, options))
	return err
}

// MountDisk mounts a disk of the Config, /dev/vda being number 0. Its file system, ext4, is made if there is none.
func (g *Guest) MountDisk(ctx context.Context, number int, dir string) error {
	return g.mountImage(ctx, "/dev/vd"+string(rune('a'+number)), dir, "defaults")
}

// MountPMem mounts persistent memory of the Config with direct access (-o dax=always), so that mmap takes MAP_SYNC. Its file
// system, ext4, is made if there is none.
func (g *Guest) MountPMem(ctx context.Context, number int, dir string) error {
	// The kernel maps files of a namespace that has room for its struct pages, which is a mode of it ("fsdax" in ndctl).
	_, err := g.Script(ctx, fmt.Sprintf(`
test "$(cat /sys/block/pmem%[1]d/queue/dax)" = 0 || exit 0
cd /sys/bus/nd
echo namespace%[1]d.0 >drivers/nd_pmem/unbind
cd devices/pfn%[1]d.0
echo 2097152 >align
echo pmem >mode
cat /proc/sys/kernel/random/uuid >uuid
echo namespace%[1]d.0 >namespace
echo pfn%[1]d.0 >/sys/bus/nd/drivers/nd_pmem/bind
`, number))
	if err != nil {
		return err
	}
	return g.mountImage(ctx, "/dev/pmem"+strconv.Itoa(number), dir, "dax=always")
}

// DeviceDAX makes persistent memory of the Config that was never mounted a device-dax and returns its name, /dev/dax0.0. A
// peer can be given this memory on adapters that must pin it, which files with direct access do not allow.
func (g *Guest) DeviceDAX(ctx context.Context, number int) (string, error) {
	device := fmt.Sprintf("/dev/dax%d.0", number)
	_, err := g.Script(ctx, fmt.Sprintf(`
modprobe -a device_dax dax_pmem
test ! -e %[2]s || exit 0
cd /sys/bus/nd
echo namespace%[1]d.0 >drivers/nd_pmem/unbind
cd devices/dax%[1]d.0
echo 2097152 >align
echo pmem >mode
cat /proc/sys/kernel/random/uuid >uuid
echo namespace%[1]d.0 >namespace
echo dax%[1]d.0 >/sys/bus/nd/drivers/dax_pmem/bind
for i in $(seq 50); do test ! -e %[2]s || exit 0; sleep 0.1; done
exit 1
`, number, device))
	return device, err
}
