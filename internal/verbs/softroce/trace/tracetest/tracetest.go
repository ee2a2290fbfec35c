// Package tracetest reads traces, for tests.
package tracetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// Packet is a packet of a trace.
type Packet struct {
	At       time.Time
	Outbound bool
	Src, Dst netip.AddrPort
	Tclass   uint8
	Hops     uint8
	ID       uint16
	Datagram []byte // BTH to ICRC
	Comment  string
	Drops    uint64
}

// Good tells whether the ICRC is that of the headers in the trace.
func (p *Packet) Good() bool {
	id, ok := wire.Verify(p.Src.Addr(), p.Dst.Addr(), p.Src.Port(), p.Datagram, p.ID)
	return ok && id == p.ID
}

// Opcode is the opcode, and QP the destination queue pair, of a packet.
func (p *Packet) Opcode() wire.Opcode { return wire.Opcode(p.Datagram[0]) }

// QP is the packet's destination queue pair.
func (p *Packet) QP() uint32 { return binary.BigEndian.Uint32(p.Datagram[4:]) & 0xFFFFFF }

// Read reads a file, which may end in the middle of a packet if cut is set. What belongs to no packet that
// could be is a failure: lengths, versions, checksums, fragments.
func Read(t testing.TB, name string, cut bool) []Packet {
	t.Helper()
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	return Parse(t, data, cut)
}

// Parse is Read for what was read.
func Parse(t testing.TB, data []byte, cut bool) (ps []Packet) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	ifi, err := r.Interface(0)
	require.NoError(t, err)
	require.Equal(t, layers.LinkTypeRaw, ifi.LinkType)
	require.NotEmpty(t, ifi.Name)
	require.NotEmpty(t, r.SectionInfo().Application)
	for {
		b, info, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) || cut && errors.Is(err, io.ErrUnexpectedEOF) {
			return ps
		}
		require.NoError(t, err)
		require.Equal(t, info.Length, info.CaptureLength)
		p := parse(t, b)
		p.At = info.Timestamp
		require.NotNil(t, opts.Flags)
		p.Outbound = opts.Flags.Direction == 2
		require.Contains(t, []uint32{1, 2}, uint32(opts.Flags.Direction))
		p.Comment = strings.Join(opts.Comments, "\n")
		if opts.DropCount != nil {
			p.Drops = *opts.DropCount
		}
		ps = append(ps, p)
	}
}

func parse(t testing.TB, b []byte) (p Packet) {
	t.Helper()
	be := binary.BigEndian
	require.NotEmpty(t, b)
	var src, dst netip.Addr
	var pseudo []byte
	switch b[0] >> 4 {
	case 4:
		require.GreaterOrEqual(t, len(b), 28)
		require.EqualValues(t, 0x45, b[0])
		require.EqualValues(t, len(b), be.Uint16(b[2:]))
		require.EqualValues(t, 0x4000, be.Uint16(b[6:]), "don't fragment")
		require.EqualValues(t, 17, b[9])
		require.EqualValues(t, 0xFFFF, ones(b[:20]), "header checksum")
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.Tclass, p.ID, p.Hops = b[1], be.Uint16(b[4:]), b[8]
		pseudo, b = b[12:20], b[20:]
	case 6:
		require.GreaterOrEqual(t, len(b), 48)
		require.EqualValues(t, len(b)-40, be.Uint16(b[4:]))
		require.EqualValues(t, 17, b[6])
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		p.Tclass, p.Hops = uint8(be.Uint16(b)>>4), b[7]
		pseudo, b = b[8:40], b[40:]
	default:
		require.Fail(t, "IP version", "%x", b[0])
	}
	require.EqualValues(t, len(b), be.Uint16(b[4:]))
	require.NotZero(t, be.Uint16(b[6:]))
	pseudo = append([]byte{0, 17, b[4], b[5]}, pseudo...)
	require.EqualValues(t, 0xFFFF, ones(append(pseudo, b...)), "UDP checksum")
	p.Src = netip.AddrPortFrom(src, be.Uint16(b))
	p.Dst = netip.AddrPortFrom(dst, be.Uint16(b[2:]))
	require.EqualValues(t, netio.Port, p.Dst.Port())
	p.Datagram = b[8:]
	return p
}

// ones is the ones' complement sum of 16-bit words, the slow way.
func ones(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(bytes.Clone(b), 0)
	}
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

// Tshark returns what tshark makes of a file. Without tshark the test is skipped, but not where CI is set.
func Tshark(t testing.TB, name string, args ...string) string {
	t.Helper()
	exe, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("tshark is not installed: apt-get install tshark")
		}
		t.Skip("tshark is not installed: apt-get install tshark")
	}
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"-n", "-r", name}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME=") // nobody's preferences
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	return string(out)
}
