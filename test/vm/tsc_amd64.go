package vm

// rdtsc reads the processor's time stamp counter, which QEMU passes on to emulated processors as it is.
func rdtsc() uint64
