// Package trace writes the packets of a softroce device to a file that Wireshark,
// tshark and tcpdump open: pcapng (draft-ietf-opsawg-pcapng) with a direction for each packet.
//
// A UDP socket shows neither the IP header nor the UDP header. Both are written as they
// were on the wire, as far as that matters: addresses, ports, lengths, traffic class, hop limit,
// and the IPv4 identification, which the invariant CRC covers. The IPv6 flow label
// is 0, and the checksums are computed. What the kernel cuts out of one send is
// written as the packets that it becomes.
//
// A trace must not change what it shows: a packet costs a copy into memory, which a goroutine
// writes to the file some milliseconds later. What the file cannot take fast enough is left out, and
// counted in the file. A file that fails ends the trace and nothing else.
package trace
