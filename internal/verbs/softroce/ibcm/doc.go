// Package ibcm is the InfiniBand communication manager as RoCEv2 uses it: the
// codecs of its management datagrams (IBTA 12.6) and the state machine that
// connects reliable queue pairs (IBTA 12.9), in the way of rdma_cm.
//
// The package does no I/O. An [Agent] is given a clock, a random source and a
// function that sends one datagram, and is told of each one that arrived.
package ibcm
