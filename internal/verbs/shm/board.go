//go:build linux

package shm

import (
	"sync/atomic"
)

// The board is segment 0 of each side: its completion queues and regions.
//
//	armOff   two words for each completion queue: 1 while it is armed, and which words of marks have any
//	regOff   the table of regions
//	markOff  marks of completion queues
const (
	maxCQs    = 1 << 14
	armStride = 64 // a cache line each
	armOff    = 0

	maxMRs    = 1 << 16 // of a link, and once more of all devices that were opened
	mrBits    = 17
	regStride = 64
	regOff    = armOff + maxCQs*armStride

	markOff = regOff + 2*maxMRs*regStride

	boardSize = markOff + maxCQs*markWords*8
)

// ownerServes is the place of a region that is no segment's: its owner does what is to be done there.
const ownerServes = 1<<32 - 1

// Words of an entry of the table of regions.
const (
	regKey    = 0  // the key, 0 if there is no region
	regUsers  = 8  // accesses of the peer's under way
	regPlace  = 16 // segment<<32 | domain
	regOffset = 24 // of the region in the segment
	regLength = 32
	regAddr   = 40 // its address in requests
	regAccess = 48
)

func armWord(board []byte, cq uint32) *atomic.Uint32 {
	return word32(board, armOff+int(cq)*armStride)
}

func regWord(board []byte, key uint32, field int) *atomic.Uint64 {
	return word64(board, regOff+int(key&(2*maxMRs-1))*regStride+field)
}

// A ring is a receive queue in shared memory: a head, and slots. Lines are of 64 bytes, each written by one side.
const (
	ringTail  = 0 // receives posted, by the owner
	ringState = 8 // ringOpen or not, by the owner

	ringHead = 64 // receives taken, by the peer
	ringFail = 72 // the peer's request was at fault: the owner's queue pair fails, too

	ringWaits = 128 // by the peer, and cleared by the owner: it waits for receives

	ringSlots = 192
)

const (
	ringOpen = 1 + iota
	ringDead
)

// A slot is a receive: the owner's list of where it goes, and the peer's result.
const (
	slotSGEs   = 0  // number of entries; of a shared ring also whose the receive is
	slotResult = 8  // bytes<<32 | immediate
	slotMore   = 16 // queue pair<<32 | status<<8 | flags
	slotList   = 24 // entries: address, length<<32 | key
	entrySize  = 16
)

// Flags of a result.
const (
	resultImm = 1 << iota
	resultInv
	resultWrite // of a WRITE with immediate
)

// Whose a receive of a shared ring is: the peer takes it before it looks at the list, and the owner, who may want to give it to another peer,
// withdraws it. Both by a compare-and-swap from lent.
const (
	lent      = 1 << 32
	taken     = 2 << 32
	withdrawn = 3 << 32
	whose     = 0xff << 32
)

func slotStride(sges int) int { return (slotList + sges*entrySize + 63) &^ 63 }
