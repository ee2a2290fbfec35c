package vm

import (
	"bytes"
	"io"
	"sync"
)

// consoleLimit is how much of a console is kept: the first and the last half of it.
const consoleLimit = 1 << 20

// console keeps what a guest's kernel and QEMU say.
type console struct {
	tee io.Writer

	mu         sync.Mutex
	head, rest bytes.Buffer
}

func newConsole(tee io.Writer) *console { return &console{tee: tee} }

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	n := min(len(p), consoleLimit/2-c.head.Len())
	c.head.Write(p[:n])
	c.rest.Write(p[n:])
	if extra := c.rest.Len() - consoleLimit/2; extra > 0 {
		c.rest.Next(extra)
	}
	c.mu.Unlock()
	if c.tee != nil {
		_, _ = c.tee.Write(p)
	}
	return len(p), nil
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.ReplaceAll(append(append([]byte(nil), c.head.Bytes()...), c.rest.Bytes()...), []byte("\r"), nil))
}
