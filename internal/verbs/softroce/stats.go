package softroce

import "sync/atomic"

// counters count what a device dropped and what it had to repair. Packets that
// fit no queue pair, or not the one they name, leave no other trace.
type counters struct {
	malformed   atomic.Uint64 // wrong length, unknown opcode, transport version, pad
	unknownQP   atomic.Uint64 // no queue pair of that number
	wrongType   atomic.Uint64 // opcode of another transport service
	wrongState  atomic.Uint64 // queue pair not connected, or in the error state
	wrongPKey   atomic.Uint64
	wrongQKey   atomic.Uint64
	wrongAddr   atomic.Uint64 // not from the peer's address, or not to the queue pair's
	staleAcks   atomic.Uint64 // responses to what is not outstanding
	outOfOrder  atomic.Uint64 // requests ahead of the expected PSN
	duplicates  atomic.Uint64 // requests behind it
	refused     atomic.Uint64 // requests answered by NAK 0x61 to 0x63
	notReady    atomic.Uint64 // requests answered by an RNR NAK
	retransmits atomic.Uint64 // packets sent again
	timeouts    atomic.Uint64 // retransmission timeouts
	rnrs        atomic.Uint64 // RNR NAKs received
	sequence    atomic.Uint64 // PSN sequence NAKs received
	sendErrors  atomic.Uint64 // batches that the network refused
	overruns    atomic.Uint64 // completion queues that overflowed
}
