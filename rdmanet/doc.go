// Package rdmanet is package net over RDMA: Dial, Listen and ListenPacket return
// [net.Conn], [net.Listener] and [net.PacketConn] values that are backed by RDMA queue pairs, so that net/http,
// crypto/tls, gRPC and whatever else is written against package net runs over
// RDMA unchanged.
//
// A server needs one line to change, and a client one:
//
//	l, err := rdmanet.Listen("rdma", ":8080") // instead of net.Listen("tcp", ":8080")
//	http.Serve(l, handler)
//
//	client := &http.Client{Transport: &http.Transport{
//		DialContext: new(rdmanet.Dialer).DialContext,
//	}}
//
// It runs on every Linux machine: on an RDMA device where there is one that serves the address and the program was
// built with cgo ("rdmacore"), else on one that the program carries with it ("softroce"), RoCEv2 over
// ordinary UDP, which needs no kernel module and no privileges. The address is that of an ordinary network
// interface; [Devices] lists what there is, and a Dialer's or ListenConfig's Device
// field chooses. The project's docs/recipes.md has the change for other libraries: gRPC, databases, proxies.
//
// # Within one host
//
// Processes of one host, and of one network namespace, share memory (the provider "shm") without being told to: a listener is on it beside the other
// providers, at the same port number, and Dial takes it where the address is one of this host's and the listener is on it. Programs that
// do not have it are found as ever. [Conn.Stats] tells what serves. Both processes are the same user's; a
// listener's Admit may let those of others in, which dial root's listeners as they do any, and other users' by naming the provider (Device "shm").
// Datagrams do not use it.
//
// On the wire a stream is rsockets version 1, connected by the RDMA connection
// manager in the port space of TCP (RDMA_PS_TCP): a peer in C may use librdmacm's rsockets. Port numbers
// are RDMA's own, so a TCP server can have the same one on the same host.
//
// # Datagrams
//
// On the networks "rdma-ud", "rdma-ud4" and "rdma-ud6" [ListenPacket], [ListenMulticast] and [Dial] give a [*PacketConn]: datagrams on
// queue pairs of the unreliable service (UD), as librdmacm's udaddy and mckey have them. A service is found by its address and
// port; the numbers are RDMA's own once more (RDMA_PS_UDP).
//
//	pc, err := rdmanet.ListenPacket("rdma-ud", ":7174")                                          // peers dial it or WriteTo its address
//	feed, err := rdmanet.ListenMulticast("rdma-ud", nil, &rdmanet.Addr{IP: netip.MustParseAddr("239.1.2.3")}) // and send to the group
//
// A datagram is one packet: [PacketConn.MaxPayload] tells how long it may be, 1024 bytes on an Ethernet with an MTU of 1500. iWARP has no datagrams.
//
// # TCP
//
// Nothing here speaks TCP unasked. With a Dialer's Fallback set, TCP serves where RDMA fails or is slow; a listener whose
// ListenConfig has a Fallback takes both at one port number, so that servers and clients can move to RDMA one by one:
//
//	lc := &rdmanet.ListenConfig{Fallback: &net.ListenConfig{}} // Accept returns a *Conn or a *net.TCPConn
//	d := &rdmanet.Dialer{Fallback: &net.Dialer{}}              // and so does Dial; Unwrap tells
//
// The project's docs/recipes.md has more on it.
//
// # Environment
//
// RDMANET_DEVICE stands in for an empty Device field. RDMANET_PCAP names a file to which
// softroce writes the packets of the process, for Wireshark; %p in it is the process's number.
// The project's docs/troubleshooting.md has more on it.
//
// # Errors
//
// Errors are a [*net.OpError] around an [*Error], which says in which [Phase]
// and on which device something failed, and what to do. With errors.Is:
//
//   - nobody listens, or the peer refused: syscall.ECONNREFUSED
//   - no answer, or a peer that fell silent: syscall.ETIMEDOUT
//   - the peer died: syscall.ECONNRESET
//   - written after the peer's close: syscall.EPIPE
//   - no route: syscall.ENETUNREACH, syscall.EHOSTUNREACH
//   - the local address: syscall.EADDRNOTAVAIL, syscall.EADDRINUSE
//   - the device was removed: syscall.ENODEV
//   - limits: syscall.EMFILE, syscall.ENOMEM
//   - packets have become too long for the way to the peer, or a datagram is longer than a packet: syscall.EMSGSIZE
//   - something that the device or its driver cannot do: [errors.ErrUnsupported]
//   - no device serves the address: [ErrNoDevice]
//   - the peer is no rsockets version 1: [ErrProtocol]
//   - a context ended: context.Canceled, context.DeadlineExceeded
//
// As in package net, Read gives io.EOF as it is, and what was closed or came too
// late is [net.ErrClosed] or [os.ErrDeadlineExceeded].
//
// # A peer that dies
//
// A process that dies on this host and in this network namespace, by whatever signal, ends its
// connections at once (ECONNRESET). A host, a container, a process or a network that is gone elsewhere is noticed 17 s after
// data was sent to it, which is when the transport gives up, or, on an idle
// connection, 17 s after keep-alive asks, by default 32 s in all (ETIMEDOUT). A process that is
// stopped for so long looks dead; over shared memory it is merely silent, as with TCP.
//
// # Closing
//
// Close delivers what was written before it. It waits for the peer's
// acknowledgement for up to 2 s and then leaves the rest to the background, for a
// bounded time. That background ends with the program: call [Drain] before leaving main.
//
// A write after the peer has closed fails, with EPIPE: at once where all that the peer sent has been read, else when it has been, or
// 64 KiB were written that nobody gets. So the reason that a peer gives before it closes, such as an alert of TLS, is read first.
// TCP takes the first write always, and loses it. A [crypto/tls.Conn] that has read the peer's end
// reports EPIPE from its own Close ("failed to send closeNotify alert"): over TCP that last alert is lost without a word.
//
// # Security
//
// RDMA traffic is clear text. What the ends tell each other while connecting can be
// forged, so that a [Request]'s Remote is a claim. Traffic of an RDMA device bypasses iptables, eBPF
// policies and tcpdump. Use [crypto/tls.Client] and [crypto/tls.Server] on whatever leaves the host,
// with certificates at both ends between services. With Fallback set, whoever can stop RDMA's packets makes the ends
// use TCP: only TLS makes that harmless.
package rdmanet
