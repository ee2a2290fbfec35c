// Package verbs is the vocabulary of RDMA and the interfaces that providers
// implement: devices, protection domains, memory regions, queue pairs,
// completion queues and connection identifiers, under the names that the
// InfiniBand Architecture Specification, libibverbs and librdmacm give them.
//
// A provider is one way to reach RDMA: the embedded device softroce, the C
// libraries (rdmacore), shared memory (shm). Everything above speaks to a
// provider through this package only.
//
// # Contract
//
// All methods are safe for concurrent use unless their comment says otherwise.
// No method of [QP], [CQ], [SRQ] or [MR] blocks, except Close, which waits for
// work of the provider that is under way and never for a peer. Calls that wait
// for a peer take a context.
//
// Handlers ([CQAttr].Notify, [CMIDAttr].Handler) run on the provider's own
// goroutines, never inside a call of the consumer's, with no lock of the
// provider held: work can be done in them, without another change of goroutine. They must
// not block, and may call any method except Close of the object that called them. They
// pass over types of event that they do not know.
//
// Devices, queue pairs and the like are compared with ==.
//
// Post and Poll work in batches: a provider that crosses into C does so once
// for a batch. They do not allocate.
//
// Lengths are 64 bits wide here where the interface says so, and 32 bits on
// the wire: a provider refuses what does not fit and never truncates.
package verbs
