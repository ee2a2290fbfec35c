// Package packettable judges responders by their packets: a table of crafted requests, one row for each opcode and fault, with
// what must come back, what completes, what memory holds and whether the queue pair lives on.
//
// It knows a responder only as a [verbs.Provider], whose memory and completions it sees, and by the wire, where it is the
// peer. So the same table runs against softroce and against the kernel's rdma_rxe. Where rdma_rxe of Linux 6.1 does otherwise the row says what it
// does, and why.
package packettable
