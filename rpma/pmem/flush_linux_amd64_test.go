package pmem

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestInstruction: the processor has what was chosen, if the kernel is asked.
func TestInstruction(t *testing.T) {
	b, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	_, flags, ok := strings.Cut(string(b), "\nflags\t\t:")
	require.True(t, ok)
	flags, _, _ = strings.Cut(flags, "\n")
	want := "CLFLUSH"
	for f := range strings.FieldsSeq(flags) {
		switch {
		case f == "clwb":
			want = "CLWB"
		case f == "clflushopt" && want == "CLFLUSH":
			want = "CLFLUSHOPT"
		}
	}
	assert.Equal(t, want, flushName)
}

// TestFlushLines: each instruction stays within the lines of its range. Where another page begins there is no memory.
func TestFlushLines(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 3*pageSize, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	page := mem[pageSize : 2*pageSize]
	require.NoError(t, unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE))
	for i := range page {
		page[i] = byte(i * 3)
	}
	for ins := insCLFLUSH; ins <= instruction; ins++ {
		for off := 0; off < pageSize; off = off*2 + 1 {
			for _, n := range []int{1, 63, 64, 65, 1000, pageSize} {
				n = min(n, pageSize-off)
				flushLines(&page[off], n, ins)
				flushLines(&page[pageSize-n], n, ins)
			}
		}
	}
	flush(page)
	for i := range page {
		require.Equal(t, byte(i*3), page[i])
	}
}
