package rpma

import (
	"strconv"
	"syscall"
)

// errTooLong is in the error of an operation that is too long.
const errTooLong = syscall.EMSGSIZE

// Flags modify an operation of [Conn.Post].
type Flags int

// Whether an operation's success completes. Its failure always does. [Conn.Do] knows by itself.
const (
	CompletionAlways Flags = iota
	CompletionOnError
)

// FlushType says what a flush is to achieve. The values are librpma's.
type FlushType int

// Types of flushes.
const (
	Persistent FlushType = iota // what was written is persistent; see [Conn.ApplyPeerConfig]
	Visibility                  // what was written is seen by everything in the peer's host
)

func (t FlushType) String() string {
	switch t {
	case Persistent:
		return "Persistent"
	case Visibility:
		return "Visibility"
	}
	return "FlushType(" + strconv.Itoa(int(t)) + ")"
}

// usage is what a region must be for.
func (t FlushType) usage() Usage {
	switch t {
	case Persistent:
		return FlushPersistent
	case Visibility:
		return FlushVisibility
	}
	return 0
}

// verb is what an operation does.
type verb uint8

const (
	verbNone verb = iota
	verbRead
	verbWrite
	verbWriteImm
	verbAtomicWrite
	verbFlush
	verbSend
	verbSendImm
)

var verbNames = [...]string{"operation", "read", "write", "write with immediate", "atomic write", "flush", "send", "send with immediate"}

func (v verb) String() string { return verbNames[v] }

var verbOps = [...]OpCode{
	verbRead: OpRead, verbWrite: OpWrite, verbWriteImm: OpWrite, verbAtomicWrite: OpAtomicWrite,
	verbFlush: OpFlush, verbSend: OpSend, verbSendImm: OpSend,
}

// Op is one operation, made by [Read], [Write] and the like. Operations of a connection begin at the peer in the order in
// which they were posted. What comes after a Read or a Flush need not wait for it: only
// [AtomicWrite] does. Of Write, Send and AtomicWrite the order is that of their effects too.
type Op struct {
	ID    uint64 // comes back with the completion of a Post
	Flags Flags

	verb   verb
	flush  FlushType
	imm    uint32
	value  [8]byte
	local  Local
	remote Remote
}

// Read reads the peer's memory.
func Read(dst Local, src Remote) Op { return Op{verb: verbRead, local: dst, remote: src} }

// Write writes the peer's memory, which its program does not notice.
func Write(dst Remote, src Local) Op { return Op{verb: verbWrite, local: src, remote: dst} }

// WriteImm writes the peer's memory and consumes a receive of the peer's, which completes with the immediate.
func WriteImm(dst Remote, src Local, imm uint32) Op {
	return Op{verb: verbWriteImm, local: src, remote: dst, imm: imm}
}

// AtomicWrite writes 8 bytes at once, at an address of the peer's that is a multiple of 8, after earlier
// Reads and Flushes are done: what they made sure of is sure when the new value is seen.
//
// Where a device or the peer's has no such operation it is a Write with a fence, whose 8 bytes NICs are known, but not bound, to
// write at once.
func AtomicWrite(dst Remote, v [8]byte) Op { return Op{verb: verbAtomicWrite, remote: dst, value: v} }

// Flush completes when what earlier operations of this connection wrote to the range is visible or persistent. The
// region must have been registered for that; for [Persistent], the peer must have said that it means something, see [Conn.ApplyPeerConfig].
//
// An empty range stands for all of the region. Where a device or the peer's has no such operation it is a Read of up to 8 bytes in the region, which pushes all that was
// written before it out of the way to memory.
func Flush(dst Remote, t FlushType) Op { return Op{verb: verbFlush, remote: dst, flush: t} }

// Send sends a message, which consumes a receive of the peer's.
func Send(src Local) Op { return Op{verb: verbSend, local: src} }

// SendImm sends a message with an immediate.
func SendImm(src Local, imm uint32) Op { return Op{verb: verbSendImm, local: src, imm: imm} }

// length is how much data the operation moves.
func (o *Op) length() int {
	switch o.verb {
	case verbAtomicWrite, verbFlush:
		return o.remote.n
	}
	return o.local.n
}

// divisible tells whether several operations can do what one is too long for.
func (o *Op) divisible() bool {
	return o.verb == verbRead || o.verb == verbWrite || o.verb == verbWriteImm
}

// check tells what is wrong with the operation on a connection, before anything of it is sent.
func (o *Op) check(c *Conn, divide bool) error {
	name := o.verb.String()
	switch o.verb {
	case verbRead, verbWrite, verbWriteImm:
		uses, own := WriteDst, Usage(0)
		if o.verb == verbRead {
			uses, own = readable, writable
		}
		switch {
		case o.local.mr == nil && !o.remote.set && o.local.n == 0:
			return nil
		case o.local.mr == nil || !o.remote.set:
			return invalid(name, "one of two ranges is none: both or neither")
		case o.local.n != o.remote.n:
			return invalid(name, "local range of %d bytes, remote of %d", o.local.n, o.remote.n)
		}
		if err := o.local.check(name, c.peer, own); err != nil {
			return err
		}
		if err := o.remote.check(name, uses); err != nil {
			return err
		}
	case verbSend, verbSendImm:
		if o.local.mr == nil {
			if o.local.n != 0 {
				return invalid(name, "range of no region")
			}
			return nil
		}
		if err := o.local.check(name, c.peer, 0); err != nil {
			return err
		}
	case verbAtomicWrite:
		if err := o.remote.check(name, WriteDst); err != nil {
			return err
		}
		switch {
		case o.remote.n != len(o.value):
			return invalid(name, "remote range of %d bytes, not %d", o.remote.n, len(o.value))
		case o.remote.off%8 != 0 || (o.remote.mr.addr+o.remote.off)%8 != 0:
			return invalid(name, "offset %d of a region at %#x is no address of a multiple of 8", o.remote.off, o.remote.mr.addr)
		}
		return nil
	case verbFlush:
		if o.flush != Persistent && o.flush != Visibility {
			return invalid(name, "%v", o.flush)
		}
		if err := o.remote.check(name, ^Usage(0)); err != nil {
			return err
		}
		return c.checkFlush(o)
	default:
		return invalid(name, "an Op that no function made")
	}
	if uint64(o.length()) > c.maxMsg && !(divide && o.divisible()) {
		return invalid(name, "%d bytes in one operation, the limit is %d: %w", o.length(), c.maxMsg, errTooLong)
	}
	return nil
}
