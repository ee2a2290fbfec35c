// Package rpma reaches the memory of a peer over RDMA: it is librpma in Go, and speaks with programs that use
// librpma in C.
//
// # Objects
//
// A [Peer] is a device with a protection domain. [Devices] lists the devices of this host; [LookupLocal] and
// [LookupRemote] find the one that an address belongs to or is reached from. [Peer.Alloc] and
// [Peer.Register] make memory regions, [MR]. The 21 bytes of a region's descriptor, which one end gives the other,
// are a [RemoteMR] there.
//
// One end listens ([Peer.Listen], [Endpoint.Accept]) and the other asks ([Peer.NewConnReq]); either request is a [ConnReq],
// whose Connect makes the [Conn]. Requests of peers that have gone, their disconnects and the confirmations of ours are the library's business: a
// program need not wait for events, though it can see them ([Conn.NextEvent], [Conn.Done]).
//
// # Operations
//
// An [Op] is made by [Read], [Write], [WriteImm], [AtomicWrite], [Flush], [Send] or [SendImm] of ranges of regions. [Conn.Do]
// posts operations and waits for them:
//
//	err := c.Do(ctx,
//		rpma.Write(log.Slice(at, n), record),
//		rpma.Flush(log.Slice(at, n), rpma.Persistent),
//		rpma.AtomicWrite(log.Slice(8, 8), tail))
//
// [Conn.Post] only posts, and a [CQ] tells what has completed: for who keeps many operations on their way. Both may be used at
// a time and from any goroutine; a completion goes to who asked for it. The program does not count: places in
// queues, unsignaled operations, room in completion queues are kept by the library. A [CQ] is waited for in a loop: poll until there is
// nothing, then Wait, or range over [CQ.Completions].
//
// Ranges, alignment and the use of regions are checked before anything is sent. What the peer still refuses, because it has closed the region since, ends the
// connection, as it does in librpma; here both ends are told.
//
// # Persistence
//
// A [Flush] makes what was written before it visible to the peer's host, or persistent. Persistent is refused until the
// peer's program has said that it means something, with a [PeerConfig]. On the embedded device FLUSH and ATOMIC WRITE are
// operations of the wire (IBTA 1.5), and a persistent flush makes the responder call msync(2), or what [Peer.RegisterPersistent] was given. Where a device or
// the peer's has no such operations they are a READ and a WRITE, as in librpma, and persistence is as good as the platform of the peer
// makes it (direct write to persistent memory). Regions are registered for both.
//
// # Security
//
// Nothing is encrypted, and nothing is authenticated: neither data nor the private data of connecting. Who changes a descriptor
// on its way has writes go elsewhere; who changes a peer configuration has data believed persistent that is not. Exchange them over TLS. Who knows
// a descriptor and has a connection to the same [Peer] has the access that the region was registered for: use a Peer for each
// domain of trust, register what is to be reached and no more, and close it.
package rpma
