// The soak lets processes dial each other, write, half-close, break off, be stopped, killed and run out of descriptors, while their
// addresses go and come back, and looks that every byte arrives once and in order, that no wait is without end, and that nothing
// is left behind. What it does is decided by a seed; when it happens is not.
//
//	make soak SOAK='-time 10m -seed 7'
//
// It needs Linux, and makes a network of its own. With -clock it sets the system's clock back and forth, which is for guests:
//
//	make vm CMD='-rxe -- /path/of/soak -net=false -device rdmacore -addr 10.9.0.1 -clock'
package main
