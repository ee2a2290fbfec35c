// Package dgram is datagrams above the verbs: a socket on unreliable-datagram queue pairs, with what its users
// need besides: address handles, lookups of services, multicast groups.
//
// A [Socket] has an *endpoint*, a queue pair with its memory, for each device, port space and local address that it uses; mostly
// that is one. What endpoints receive is read as from one queue.
//
// # Progress
//
// Nothing has to be done for a socket while nobody calls it: what arrives waits in its receive, and what meets none is lost, as
// with UDP. So completions are handled by those who read and those who write, one of each at a time, and a completion
// queue is armed only while one of them is parked. Sends and receives have queues of their own, so that a socket that only sends wakes nobody.
//
// # Peers
//
// A peer is an IP address and the number of a queue pair. One that has sent something is known by it; a service is looked up by its port
// (SIDR), once for all who want it. Both are kept, with an address handle, in a table of limited size. Nobody tells that a service has
// moved to another queue pair or a host to another hardware address. So where what is sent stays unanswered, the
// peer is looked up again, in intervals that double.
package dgram
