package rdmanet

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/ring"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Conn is a stream over an RDMA connection: a [net.Conn], with what a
// [*net.TCPConn] can do besides. Its methods may be called from several
// goroutines: reads wait for reads and writes for writes; Close and deadlines interrupt both.
type Conn struct {
	ring          *ring.Conn
	network       string
	local, remote *Addr
	provider      string
	device        string
	totals        *totals

	mu        sync.Mutex
	keepAlive net.KeepAliveConfig // as last set
}

func newConn(network string, id verbs.CMID, keepAlive net.KeepAliveConfig) *Conn {
	c := &Conn{
		keepAlive: keepAlive,
		network:   network,
		local:     AddrFromAddrPort(id.LocalAddr()), remote: AddrFromAddrPort(id.RemoteAddr()),
		provider: id.Provider().Name(), device: id.Device().Name(),
	}
	c.totals = totalsOf(c.provider, c.device)
	return c
}

// ok tells whether the connection was made by this package.
func (c *Conn) ok() bool { return c != nil && c.ring != nil }

func (c *Conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	err = opError(op, c.network, c.local, c.remote, PhaseTransfer, err)
	var e *Error
	if errors.As(err, &e) && e.Provider == "" {
		e.Provider, e.Device = c.provider, c.device
	}
	return err
}

// Read reads what has arrived, at least one byte, or waits for it.
func (c *Conn) Read(b []byte) (int, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	n, err := c.ring.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.opError("read", err)
	}
	return n, err
}

// Write returns when all of b is in the send ring or with the device, or with an
// error that tells why not.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	n, err := c.ring.Write(b)
	return n, c.opError("write", err)
}

// WriteBuffers writes the buffers, as [net.Buffers.WriteTo] does on TCP: in as
// few messages as can be, consuming what it has written.
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	n, err := c.ring.WriteBuffers(v)
	return n, c.opError("write", err)
}

// Close closes the connection. What was written is delivered: Close waits for that
// a short while (see SetLinger), and what is then left goes on in the background
// for a bounded time, for which [Drain] waits.
func (c *Conn) Close() error {
	if !c.ok() {
		return syscall.EINVAL
	}
	err := c.ring.Close()
	c.closed()
	return c.opError("close", err)
}

// abort closes the connection without delivering anything.
func (c *Conn) abort() {
	_ = c.ring.SetLinger(0)
	_ = c.ring.Close()
	c.closed()
}

// CloseRead makes this and every later Read give io.EOF. The peer is not told:
// there is no message for it.
func (c *Conn) CloseRead() error {
	if !c.ok() {
		return syscall.EINVAL
	}
	return c.opError("close", c.ring.CloseRead())
}

// CloseWrite tells the peer that nothing more comes: it reads the rest, then io.EOF.
func (c *Conn) CloseWrite() error {
	if !c.ok() {
		return syscall.EINVAL
	}
	return c.opError("close", c.ring.CloseWrite())
}

// LocalAddr returns the address of this end, a [*Addr].
func (c *Conn) LocalAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	return c.local
}

// RemoteAddr returns the address of the peer, a [*Addr].
func (c *Conn) RemoteAddr() net.Addr {
	if !c.ok() {
		return nil
	}
	return c.remote
}

// set wraps what the setters have in common.
func (c *Conn) set(f func() error) error {
	if !c.ok() {
		return syscall.EINVAL
	}
	return c.opError("set", f())
}

// SetDeadline sets the deadlines of Read and Write.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.set(func() error { return c.ring.SetDeadline(t) })
}

// SetReadDeadline makes reads fail with [os.ErrDeadlineExceeded] from t on, those
// that wait already too. The zero time lifts that.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.set(func() error { return c.ring.SetReadDeadline(t) })
}

// SetWriteDeadline is SetReadDeadline for writes. A write that times out may have
// written a part.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.set(func() error { return c.ring.SetWriteDeadline(t) })
}

// SetLinger says what Close does with what is written and not yet acknowledged.
// sec < 0, the default: wait up to 2 s, then go on in the background. sec > 0: the
// same with so many seconds. sec = 0: discard it; the peer's reads fail.
func (c *Conn) SetLinger(sec int) error {
	return c.set(func() error { return c.ring.SetLinger(sec) })
}

// SetReadBuffer limits the receive ring, from its next extension on.
func (c *Conn) SetReadBuffer(bytes int) error {
	return c.set(func() error { return c.ring.SetReadBuffer(bytes) })
}

// SetWriteBuffer limits the send ring.
func (c *Conn) SetWriteBuffer(bytes int) error {
	return c.set(func() error { return c.ring.SetWriteBuffer(bytes) })
}

// SetBusyPoll says how long, at most, a Read that finds nothing looks again before it
// sleeps. 0: as seems good, negative: not at all.
//
// A Read that looks holds one of Go's processors (GOMAXPROCS), but it does not stand in others' way. Goroutines that can run get the processor
// at once; where they wait for another one that is not given up, the Read sleeps. Of Reads that would hold all processors, the last sleeps after 50 µs.
// With one processor none looks again. Where other programs take the processor for milliseconds from those who look, and
// that costs more time than looking saves, the Reads of that connection sleep at once, and look again now and then: within a second they notice that it pays again.
func (c *Conn) SetBusyPoll(d time.Duration) error {
	return c.set(func() error { return c.ring.SetBusyPoll(d) })
}

// ReadFrom writes all that r gives, until io.EOF. An error of r comes as it is. It
// implements [io.ReaderFrom].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	src := source{r: r}
	n, err := c.ring.ReadFrom(&src)
	if err != nil && !errors.Is(err, src.err) {
		err = c.opError("write", err)
	}
	return n, err
}

// WriteTo gives w all that arrives, until io.EOF. An error of w comes as it is. It
// implements [io.WriterTo].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	if !c.ok() {
		return 0, syscall.EINVAL
	}
	dst := destination{w: w}
	n, err := c.ring.WriteTo(&dst)
	if err != nil && !errors.Is(err, dst.err) && !errors.Is(err, io.ErrShortWrite) {
		err = c.opError("read", err)
	}
	return n, err
}

// source remembers the error of the reader that a connection reads from, to tell
// it from the connection's own.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (n int, err error) {
	n, err = s.r.Read(b)
	s.err = err
	return n, err
}

// destination does the same for a writer.
type destination struct {
	w   io.Writer
	err error
}

func (d *destination) Write(b []byte) (n int, err error) {
	n, err = d.w.Write(b)
	d.err = err
	return n, err
}

// Unwrap finds the [*Conn] under c: c itself, or what a [*crypto/tls.Conn] or another type with
// a NetConn method stands on. It tells whether a connection really is on RDMA.
func Unwrap(c net.Conn) (*Conn, bool) {
	const depth = 32 // nobody stacks more; a type may return itself
	for range depth {
		if c == nil {
			return nil, false
		}
		if rc, ok := c.(*Conn); ok {
			return rc, rc != nil
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, false
		}
		c = over.NetConn()
	}
	return nil, false
}
