package rdmanet_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/rdmanet"
)

// names gives a resolver that knows one host, by asking a name server of the test's own.
func names(t *testing.T, addrs ...string) *net.Resolver {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			for _, s := range addrs {
				a := netip.MustParseAddr(s)
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET, TTL: 1}
				switch {
				case a.Is4() && q.Type == dnsmessage.TypeA:
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
				case a.Is6() && q.Type == dnsmessage.TypeAAAA:
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
				}
			}
			if b, err := m.Pack(); err == nil {
				pc.WriteTo(b, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

func port(t *testing.T, l net.Listener) string {
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// Of several addresses, the first that works serves.
func TestDialSeveralAddresses(t *testing.T) {
	l := listen(t, nil) // on 127.0.0.1
	r := names(t, "127.0.0.2", "127.0.0.3", "127.0.0.1")
	for _, delay := range []time.Duration{0, -1} {
		d := &rdmanet.Dialer{Resolver: r, FallbackDelay: delay, Timeout: 20 * time.Second}
		c, err := d.Dial("rdma", "host.test:"+port(t, l))
		require.NoError(t, err)
		assert.Equal(t, l.Addr().String(), c.RemoteAddr().String())
		require.NoError(t, c.Close())
	}
	_, err := (&rdmanet.Dialer{Resolver: names(t, "127.0.0.2", "127.0.0.3")}).Dial("rdma", "host.test:"+port(t, l))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = (&rdmanet.Dialer{Resolver: r}).Dial("rdma6", "host.test:"+port(t, l))
	require.Error(t, err)
}

// With both families, one that does not answer costs no more than FallbackDelay.
func TestDialBothFamilies(t *testing.T) {
	l6, err := rdmanet.Listen("rdma6", "[::1]:0")
	require.NoError(t, err)
	defer l6.Close()
	r := names(t, "127.0.0.1", "::1")

	// IPv4 refuses: IPv6 serves, whatever the delay.
	for _, delay := range []time.Duration{time.Minute, -1} {
		start := time.Now()
		c, err := (&rdmanet.Dialer{Resolver: r, FallbackDelay: delay}).Dial("rdma", "host.test:"+port(t, l6))
		require.NoError(t, err)
		assert.Equal(t, l6.Addr().String(), c.RemoteAddr().String())
		assert.Less(t, time.Since(start), 10*time.Second)
		require.NoError(t, c.Close())
	}

	// IPv4 is silent.
	addr := silent(t)
	_, p, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	l, err := rdmanet.Listen("rdma6", "[::1]:"+p)
	require.NoError(t, err, "the port of another family is free")
	defer l.Close()
	start := time.Now()
	c, err := (&rdmanet.Dialer{Resolver: r, FallbackDelay: 100 * time.Millisecond}).Dial("rdma", "host.test:"+p)
	require.NoError(t, err)
	assert.Equal(t, l.Addr().String(), c.RemoteAddr().String())
	assert.Less(t, time.Since(start), 2*time.Second)
	require.NoError(t, c.Close())

	// Neither serves: the error is the preferred family's.
	_, err = (&rdmanet.Dialer{Resolver: r}).Dial("rdma", "host.test:"+port(t, deadListener(t)))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// The same with a service of datagrams.
func TestDialDatagramsBothFamilies(t *testing.T) {
	silent, err := cm.Default().Listen(t.Context(), "softroce", verbs.ListenAttr{
		PortSpace: verbs.PSUDP, Local: netip.MustParseAddrPort("127.0.0.1:0"), Backlog: 4,
	})
	require.NoError(t, err)
	defer silent.Close()
	p := fmt.Sprint(silent.Addr().Port())
	s := listenPacket(t, "rdma-ud6", "[::1]:"+p)
	d := &rdmanet.Dialer{Resolver: names(t, "127.0.0.1", "::1"), FallbackDelay: 100 * time.Millisecond}
	start := time.Now()
	c, err := d.Dial("rdma-ud", "host.test:"+p)
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, "[::1]:"+p, c.RemoteAddr().String())
	assert.Less(t, time.Since(start), 2*time.Second)
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	gets(t, s, "hello")
	require.NoError(t, s.Close())
	d.Timeout = 10 * time.Second
	_, err = d.Dial("rdma-ud", "host.test:"+fmt.Sprint(localPacketClosed(t)))
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "nobody serves either")
}

// localPacketClosed is a port that nobody serves any more.
func localPacketClosed(t *testing.T) uint16 {
	s := listenPacket(t, "rdma-ud", ":0")
	require.NoError(t, s.Close())
	return s.LocalAddr().(*rdmanet.Addr).Port
}

// deadListener is one that was closed: its port is nobody's.
func deadListener(t *testing.T) net.Listener {
	l, err := rdmanet.Listen("rdma", ":0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l
}

func TestDialResolverFails(t *testing.T) {
	_, e := dialError(t, &rdmanet.Dialer{Resolver: names(t)}, "rdma", "host.test:80")
	var de *net.DNSError
	require.ErrorAs(t, e, &de)
	assert.Equal(t, rdmanet.Phase("resolve"), e.Phase)
}
