// Package rpma reaches the memory of a peer over RDMA.
//
// It describes this host's RDMA devices: [Devices] lists them, [LookupLocal] and
// [LookupRemote] find the one that an address belongs to or is reached from.
package rpma
