package main

import (
	"os"
	"runtime"
	"time"
)

// usage is what a process has of the machine.
type usage struct {
	Resident    int64 // bytes of its memory that are there, mapped files and shared memory included
	PageTables  int64 // bytes
	Heap        int64 // bytes of Go's objects
	Stacks      int64 // bytes of goroutines' stacks
	Goroutines  int
	Threads     int
	Descriptors int
	Mappings    int
	CPU         time.Duration
}

// ownUsage is this process's, without garbage.
func ownUsage() (*usage, error) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := &usage{Heap: int64(m.HeapAlloc), Stacks: int64(m.StackInuse), Goroutines: runtime.NumGoroutine()}
	return u, u.read(os.Getpid())
}

// memory is what the process takes of the machine's.
func (u *usage) memory() int64 { return u.Resident + u.PageTables }
