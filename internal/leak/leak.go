// Package leak tells what was made and not closed, and where it was made. Tests and the soak switch it on, with [Start], before
// anything is made; otherwise it costs a load and a comparison when something is made or closed, and nothing for data.
package leak

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	on   atomic.Bool
	mu   sync.Mutex
	open = make(map[any]*record) // by *record, or by the first byte of memory
)

// record is one thing that is there.
type record struct {
	kind string
	n    int
	pcs  [48]uintptr
}

// Mark is a field of what has to be closed. The zero value is ready; it must not be copied.
type Mark struct{ r *record }

// Made is called when the thing is made, by whoever makes it.
func (m *Mark) Made(kind string) {
	if on.Load() {
		m.r = newRecord(kind)
		add(m.r, m.r)
	}
}

// Gone is called when nothing is left of it. More calls do no harm.
func (m *Mark) Gone() {
	if m.r != nil {
		remove(m.r)
	}
}

// MadeMemory is Mark.Made for memory that was mapped.
func MadeMemory(kind string, mem []byte) {
	if on.Load() {
		add(&mem[0], newRecord(kind))
	}
}

// GoneMemory is called when memory is unmapped, with what MadeMemory was called with.
func GoneMemory(mem []byte) {
	if on.Load() {
		remove(&mem[0])
	}
}

func newRecord(kind string) *record {
	r := &record{kind: kind}
	r.n = runtime.Callers(3, r.pcs[:]) // without Callers, this and Made
	return r
}

func add(key any, r *record) {
	mu.Lock()
	open[key] = r
	mu.Unlock()
}

func remove(key any) {
	mu.Lock()
	delete(open, key)
	mu.Unlock()
}

// Start begins to record. What is there already stays unknown.
func Start() { on.Store(true) }

// Object is a number of things of one kind that were made in one place.
type Object struct {
	Kind  string
	Count int
	Stack string // of the place, as the runtime prints stacks
}

// Open returns what is there, of each kind the most frequent first.
func Open() []Object {
	mu.Lock()
	records := slices.Collect(maps.Values(open))
	mu.Unlock()
	byPlace := make(map[Object]int)
	for _, r := range records {
		byPlace[Object{Kind: r.kind, Stack: r.stack()}]++
	}
	objects := make([]Object, 0, len(byPlace))
	for o, n := range byPlace {
		o.Count = n
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Stack, b.Stack))
	})
	return objects
}

func (r *record) stack() string {
	var b strings.Builder
	frames := runtime.CallersFrames(r.pcs[:r.n])
	for {
		f, more := frames.Next()
		fmt.Fprintf(&b, "%s(...)\n\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}

// Find waits for at most limit until nothing is there. The error names what is, and where it was made.
func Find(limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		objects := Open()
		if len(objects) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return &Error{objects}
		}
	}
}

// Error is what was left behind.
type Error struct{ Objects []Object }

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("left behind:")
	for _, o := range e.Objects {
		fmt.Fprintf(&b, "\n%d × %s, made at\n%s", o.Count, o.Kind, o.Stack)
	}
	return b.String()
}

// exitPatience is for what is closed in the background: DREQs that are repeated until they are answered.
var exitPatience = 20 * time.Second

// Exit ends a program whose tests ended with code, if nothing is left behind: else with status 1, and word of what is. It is
// made for goleak.Cleanup.
func Exit(code int) {
	if code == 0 {
		if err := Find(exitPatience); err != nil {
			fmt.Fprintln(os.Stderr, "leak:", err)
			code = 1
		}
	}
	os.Exit(code)
}
