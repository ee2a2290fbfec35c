package pmem

// How lines leave the caches: CLWB writes a line and keeps it, CLFLUSHOPT drops it too, and CLFLUSH does so one line after the
// other. The first two are ordered by SFENCE only (Intel SDM volume 2A).
const (
	insCLFLUSH = iota
	insCLFLUSHOPT
	insCLWB
)

// instruction is the best that the processor has, and flushName its name.
var instruction, flushName = func() (int, string) {
	switch ebx := features(); { // of leaf 7
	case ebx&(1<<24) != 0:
		return insCLWB, "CLWB"
	case ebx&(1<<23) != 0:
		return insCLFLUSHOPT, "CLFLUSHOPT"
	}
	return insCLFLUSH, "CLFLUSH" // as old as SSE2, without which there is no amd64
}()

// features returns EBX of CPUID, leaf 7, subleaf 0, or 0 where there is no such leaf.
func features() uint32

// flush writes the cache lines of b, which is not empty, to memory, and waits for the stores to be taken there.
func flush(b []byte) { flushLines(&b[0], len(b), instruction) }

// flushLines does so with a certain instruction. Lines have 64 bytes on all processors that there are.
//
//go:noescape
func flushLines(p *byte, n, instruction int)
