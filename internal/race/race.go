// Package race tells the race detector of orderings that it cannot see: that of
// memory written before a message went out over a socket or a device, and read
// after it came in. Package syscall does the same for its reads and writes.
// Without the build tag race everything here is empty.
package race
