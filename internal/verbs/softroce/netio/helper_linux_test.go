package netio

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sink is a handler that copies what it gets.
type sink struct {
	mu   sync.Mutex
	pkts []Packet
	more chan struct{}
}

func newSink() *sink { return &sink{more: make(chan struct{}, 1)} }

func (s *sink) HandlePackets(ps []Packet) {
	s.mu.Lock()
	for _, p := range ps {
		p.Data = bytes.Clone(p.Data)
		s.pkts = append(s.pkts, p)
	}
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pkts)
}

// take waits for n packets and returns them.
func (s *sink) take(t testing.TB, n int) []Packet {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for s.count() < n {
		select {
		case <-s.more:
		case <-timeout:
			t.Fatalf("%d packets of %d came", s.count(), n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ps := s.pkts
	s.pkts = nil
	return ps
}

// freePort finds a port that is free in both families.
func freePort(t testing.TB) uint16 {
	t.Helper()
	for range 100 {
		c, err := net.ListenPacket("udp", ":0")
		require.NoError(t, err)
		port := c.LocalAddr().(*net.UDPAddr).Port
		require.NoError(t, c.Close())
		c4, err := net.ListenPacket("udp4", (&net.UDPAddr{Port: port}).String())
		if err != nil {
			continue
		}
		require.NoError(t, c4.Close())
		return uint16(port)
	}
	t.Fatal("no free port")
	return 0
}

func listen(t testing.TB, cfg Config) *UDP {
	t.Helper()
	u, err := Listen(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, u.Close()) })
	return u
}

// pair is two Conns that send to each other.
type pair struct {
	a, b   *UDP
	sa, sb *sink
}

func newPair(t testing.TB, mod func(*Config)) *pair {
	t.Helper()
	p := &pair{sa: newSink(), sb: newSink()}
	pa, pb := freePort(t), freePort(t)
	for pb == pa {
		pb = freePort(t)
	}
	cfg := Config{Port: pa, RemotePort: pb, Handler: p.sa}
	if mod != nil {
		mod(&cfg)
	}
	p.a = listen(t, cfg)
	cfg.Port, cfg.RemotePort, cfg.Handler = pb, pa, p.sb
	p.b = listen(t, cfg)
	return p
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// put adds a packet to b: a BTH with PSN psn, and payload in two pieces.
func put(b *TxBatch, p *Path, psn uint32, payload []byte) {
	h := b.Add(p, 12)
	clear(h)
	h[0] = 0x04
	h[1] = byte(-len(payload)&3) << 4
	binary.BigEndian.PutUint32(h[8:], psn)
	n := len(payload) / 3
	b.Payload(payload[:n])
	b.Payload(payload[n:])
}

// check compares a packet with what put made.
func check(t testing.TB, p *Packet, psn uint32, payload []byte) {
	t.Helper()
	require.Equal(t, psn, binary.BigEndian.Uint32(p.Data[8:]))
	pad := -len(payload) & 3
	require.Len(t, p.Data, 12+len(payload)+pad)
	require.True(t, bytes.Equal(payload, p.Data[12:12+len(payload)]), "payload differs")
	require.Equal(t, make([]byte, pad), p.Data[12+len(payload):])
}

func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}

// fds counts this process's descriptors.
func fds(t testing.TB) int {
	t.Helper()
	if r, w, err := os.Pipe(); err == nil { // the runtime's poller opens some at first use
		r.Close()
		w.Close()
	}
	l, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(l)
}
