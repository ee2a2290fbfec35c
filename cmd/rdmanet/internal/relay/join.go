package relay

import (
	"io"
	"net"
	"sync"

	"github.com/go-rdma/rdma/rdmanet"
)

// Traffic is what went over a pair of connections.
type Traffic struct {
	Forth, Back int64 // bytes from the first to the second connection, and back
}

// Join copies from each connection to the other, and closes both when both ways have ended. The end of one way is passed on
// and leaves the other way open. A connection that breaks breaks the other: its peer sees a reset, not an orderly end.
// The error is what broke, nil if both ways ended in order.
func Join(a, b net.Conn) (Traffic, error) {
	p := &pair{a: a, b: b}
	var t Traffic
	var wg sync.WaitGroup
	wg.Go(func() { t.Forth = p.copy(b, a) })
	wg.Go(func() { t.Back = p.copy(a, b) })
	wg.Wait()
	_, _ = a.Close(), b.Close()
	return t, p.err
}

type pair struct {
	a, b net.Conn
	once sync.Once
	err  error
}

// copy moves one way.
func (p *pair) copy(dst, src net.Conn) int64 {
	n, rerr, werr := transfer(dst, src)
	switch {
	case rerr != nil:
		p.fail(rerr)
		Abort(p.a)
		Abort(p.b)
	case werr != nil:
		// The receiver is gone, and what it has sent before may be on its way still: the other way ends by itself.
		p.fail(werr)
	default:
		if c, ok := dst.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // fails if dst is gone, which the other way notices
		}
	}
	return n
}

func (p *pair) fail(err error) { p.once.Do(func() { p.err = err }) }

// Abort closes a connection so that its peer sees a failure, where there is a way to tell it.
func Abort(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // closed, perhaps
	}
	_ = c.Close()
}

// transfer copies until the end of src, and tells on which side it failed. It leaves rdmanet's connections the copying between their
// rings and the other connection.
func transfer(dst, src net.Conn) (n int64, rerr, werr error) {
	r, w := &tap{r: src}, &drain{w: dst}
	var err error
	if c, ok := src.(*rdmanet.Conn); ok {
		n, err = c.WriteTo(w)
		if w.err == nil {
			r.err = err
		}
		return n, r.err, w.err
	}
	if c, ok := dst.(*rdmanet.Conn); ok {
		n, err = c.ReadFrom(r)
	} else {
		n, err = io.Copy(w, r)
	}
	if r.err == nil {
		w.err = err
	}
	return n, r.err, w.err
}

// tap keeps the error of its reader.
type tap struct {
	r   io.Reader
	err error
}

func (t *tap) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	if err != nil && err != io.EOF {
		t.err = err
	}
	return n, err
}

// drain keeps the error of its writer.
type drain struct {
	w   io.Writer
	err error
}

func (d *drain) Write(b []byte) (int, error) {
	n, err := d.w.Write(b)
	if err != nil {
		d.err = err
	}
	return n, err
}
