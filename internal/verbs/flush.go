package verbs

import (
	"fmt"
	"syscall"
)

// FlushLevel is how much memory a FLUSH is about: the selectivity level of IBTA annex A19.4.1.2, as in enum
// ib_selectivity_level.
type FlushLevel uint8

const (
	FlushRange FlushLevel = iota // [SendWR.RemoteAddr, SendWR.RemoteAddr + SendWR.FlushLength)
	FlushMR                      // all of the region of SendWR.RKey, whatever address and length say
)

// Persister is a [PD] of a device that makes memory persistent in software, when a FLUSH asks for it. A device
// that is no Persister knows how by itself.
type Persister interface {
	PD

	// RegPersistentMR is RegMR with the flag FlushPersistent. persist makes a range of mem persistent, which
	// lasts however long it takes: a FLUSH that the peer waits for is answered when it has returned, and fails with
	// RemOpErr if that is an error. It is called on a goroutine of the provider's, for several connections at a time, and
	// must not close what belongs to one of them. The region's Close waits for it.
	//
	// nil takes the provider's own way, where it has one: msync(2) with MS_SYNC. That does what it promises for
	// a shared mapping of a file, and nothing for a private one or for anonymous memory, without an error. RegMR with FlushPersistent takes
	// it too, and refuses memory of an [Arena], which is of the kind that nothing makes persistent.
	RegPersistentMR(mem []byte, access Access, persist func(mem []byte) error) (MR, error)
}

const flushTypes = FlushGlobal | FlushPersistent

// CheckFlush is for providers: it refuses a FLUSH that is none (IBTA annex A19), or of more than most bytes.
func CheckFlush(provider string, wr *SendWR, most uint64) error {
	switch {
	case wr.FlushType&flushTypes == 0 || wr.FlushType&^flushTypes != 0:
		return fmt.Errorf("%s: FLUSH of type %#x: %w", provider, uint16(wr.FlushType), syscall.EINVAL)
	case wr.FlushLevel > FlushMR:
		return fmt.Errorf("%s: FLUSH of level %d: %w", provider, wr.FlushLevel, syscall.EINVAL)
	case len(wr.SGL) > 0 || wr.Inline != nil:
		return fmt.Errorf("%s: a FLUSH carries no data: %w", provider, syscall.EINVAL)
	case wr.FlushLevel == FlushRange && uint64(wr.FlushLength) > most:
		return fmt.Errorf("%s: FLUSH of %d bytes, the limit is %d: %w", provider, wr.FlushLength, most, syscall.EMSGSIZE)
	}
	return nil
}
