// Package shm is the provider of shared memory: connections between processes of one host, without a network in between.
//
// Two processes that are connected have a link: a Unix socket, and memory of each that the other maps. Whoever posts a
// request carries it out himself, in the peer's memory: he looks the region up in the peer's table, copies, takes the peer's
// receive and tells him by a word in memory. A message over the socket wakes those only who have asked for it.
//
// A link joins a process that dials with one that listens. A [verbs.Device] that an identifier is bound to is one end of a
// link: the memory that is registered with it is shared with that one process and no other.
//
// # What is trusted
//
// The peer runs as the same user, as the kernel says, and is not trusted with more than the memory that was
// registered for it. Whatever is read from shared memory or the socket is read once and checked. Memory of the peer's is
// a sealed memfd that cannot shrink.
//
// Only Linux has all this. Elsewhere the provider says so.
package shm
