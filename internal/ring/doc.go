// Package ring is a byte stream over a reliable connection, wire-compatible with
// version 1 of rsockets (librdmacm).
//
// Each side owns receive memory that the peer writes into, and a small array, the
// target SGL, into which the peer writes descriptors of its own receive memory.
// Data is RDMA WRITE WITH IMMEDIATE into the oldest descriptor not yet full; the
// immediate tells how many bytes. A descriptor is filled completely before the
// next is touched. A receiver gives space back by writing a new descriptor into
// the sender's target SGL, together with a new limit of messages.
//
// On a device without immediates (iWARP) each is a message of its own behind the write.
//
// # Memory
//
// A connection begins with one small segment of receive memory and publishes more
// and larger ones while the peer fills them fast and the reader keeps up. Memory for sending is
// borrowed while data is on its way. An idle connection has no goroutine.
//
// # Locks
//
// rmu and wmu are held by a Read or Write for its whole duration, also while it
// waits: reads exclude reads and writes exclude writes, as in package net.
// Protocol state has two short locks, tx.mu and rx.mu, of which tx.mu is taken
// first. No provider call is made under rx.mu but registering memory.
package ring
