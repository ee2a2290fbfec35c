package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// ending is how the one who dialed ends a talk.
type ending uint8

const (
	orderly  ending = iota // both half-close when they have written all, and read until io.EOF
	cut                    // Close behind what was written, without a look at what comes
	abort                  // likewise, as a reset, which may overtake what was written
	dialSide               // only the one who dialed half-closes; the other one closes
	endings
)

// talk is what the ends of a connection say, as the one who dialed tells the other first.
type talk struct {
	id       uint64
	seed     uint64
	up, down uint64 // bytes from the one who dialed, and to it
	end      ending
	lazy     bool // reads have pauses
}

const headerLen = 8*4 + 2

func newTalk(id, seed uint64) talk {
	r := rand.New(rand.NewPCG(seed, 2))
	size := func() uint64 {
		switch r.IntN(8) {
		case 0:
			return 0
		case 1:
			return r.Uint64N(8 << 20)
		}
		return r.Uint64N(1 << r.IntN(18))
	}
	return talk{id: id, seed: seed, up: size(), down: size(), end: ending(r.IntN(int(endings))), lazy: r.IntN(6) == 0}
}

func (t *talk) header() []byte {
	b := make([]byte, 0, headerLen)
	for _, v := range []uint64{t.id, t.seed, t.up, t.down} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	lazy := byte(0)
	if t.lazy {
		lazy = 1
	}
	return append(b, byte(t.end), lazy)
}

func parseTalk(b []byte) talk {
	be := binary.BigEndian
	return talk{
		id: be.Uint64(b), seed: be.Uint64(b[8:]), up: be.Uint64(b[16:]), down: be.Uint64(b[24:]),
		end: ending(b[32]), lazy: b[33] != 0,
	}
}

// source gives the bytes of one direction.
func (t *talk) source(up bool) *rand.ChaCha8 {
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], t.seed)
	if up {
		key[8] = 1
	}
	return rand.NewChaCha8(key)
}

// errWrong is what must not happen, whatever befalls the ends.
var errWrong = errors.New("wrong")

// errShort is an end before all has come, as if it were orderly: what must not happen either, but where the kernel has the device. It ends
// the connections of a process that was killed, as TCP's are ended, with nothing that tells an end from that of a program.
var errShort = errors.New("short")

// run holds one end of the talk. The connection is closed when it returns, whatever it returns.
func (t *talk) run(c *rdmanet.Conn, dialed bool) error {
	out, in := t.up, t.down
	if !dialed {
		out, in = in, out
	}
	wrote := make(chan error, 1)
	go func() { wrote <- t.write(c, dialed, out) }()
	var werr, rerr error
	if dialed && (t.end == cut || t.end == abort) {
		werr = <-wrote
		if t.end == abort && werr == nil {
			werr = c.SetLinger(0)
		}
		return errors.Join(werr, t.close(c))
	}
	rerr = t.read(c, dialed, in)
	if !dialed && t.end != orderly && t.end != dialSide {
		// The other end takes nothing: what this one writes ends as it may, once everything has come.
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		<-wrote //nolint:errcheck // it ends as it may
		cerr := t.close(c)
		if t.end == abort {
			return rerr
		}
		return errors.Join(rerr, ignorePipe(cerr))
	}
	return errors.Join(rerr, <-wrote, t.close(c))
}

// ignorePipe: Close of an end with bytes that nobody takes.
func ignorePipe(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// closePatience is longer than Close lingers.
const closePatience = 10 * time.Second

func (t *talk) close(c *rdmanet.Conn) error {
	begin := time.Now()
	err := c.Close()
	if d := time.Since(begin); d > closePatience {
		return fmt.Errorf("%w: Close took %v", errWrong, d)
	}
	return err
}

func (t *talk) write(c *rdmanet.Conn, up bool, n uint64) error {
	r := rand.New(rand.NewPCG(t.seed, 3))
	src := t.source(up)
	if n > 0 && r.IntN(4) == 0 { // in one go, through ReadFrom
		m, err := c.ReadFrom(io.LimitReader(src, int64(n)))
		if err == nil && uint64(m) != n {
			err = fmt.Errorf("%w: ReadFrom took %d of %d bytes", errWrong, m, n)
		}
		if err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		n = 0
	}
	buf := make([]byte, max(1<<r.IntN(18), n/4096))
	for n > 0 {
		b := buf[:min(uint64(1+r.IntN(len(buf))), n)]
		_, _ = src.Read(b) // never fails
		m, err := c.Write(b)
		if err == nil && m != len(b) {
			err = fmt.Errorf("%w: Write took %d of %d bytes", errWrong, m, len(b))
		}
		if err != nil {
			return fmt.Errorf("writing, %d bytes short: %w", n, err)
		}
		n -= uint64(m)
	}
	if t.end == orderly || t.end == dialSide && up {
		if err := c.CloseWrite(); err != nil {
			return fmt.Errorf("half-closing: %w", err)
		}
	}
	return nil
}

func (t *talk) read(c *rdmanet.Conn, dialed bool, n uint64) error {
	r := rand.New(rand.NewPCG(t.seed, 4))
	src := t.source(!dialed)
	// Small reads, but not so many that they would be all that goes on.
	buf := make([]byte, max(1<<r.IntN(18), n/4096))
	want := make([]byte, len(buf))
	ends := t.end == orderly || !dialed // what the other end does behind its bytes
	for got := uint64(0); ; {
		b := buf[:len(buf)-r.IntN((len(buf)+1)/2)]
		if !ends {
			b = b[:min(uint64(len(b)), n-got)]
			if len(b) == 0 {
				return nil
			}
		}
		m, err := c.Read(b)
		_, _ = src.Read(want[:m]) // never fails
		if !bytes.Equal(b[:m], want[:m]) {
			return fmt.Errorf("%w: other bytes than were sent, in %d behind %d of %d", errWrong, m, got, n)
		}
		got += uint64(m)
		eof := err == io.EOF //nolint:errorlint // exactly that one, as io.Reader has it
		switch {
		case got > n:
			return fmt.Errorf("%w: %d bytes, only %d were sent", errWrong, got, n)
		case eof && t.end == abort:
			return fmt.Errorf("%w: io.EOF behind %d of %d bytes of a connection that was reset", errShort, got, n)
		case eof && got < n:
			return fmt.Errorf("%w: io.EOF behind %d of %d bytes", errShort, got, n)
		case eof:
			return nil
		case err != nil && t.end == abort && errors.Is(err, syscall.ECONNRESET):
			return nil
		case err != nil:
			return fmt.Errorf("reading, behind %d of %d bytes: %w", got, n, err)
		}
		if t.lazy && r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		}
	}
}
