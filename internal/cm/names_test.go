package cm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

func TestLookupLiterals(t *testing.T) {
	for _, c := range []struct {
		f       Family
		address string
		dial    string // "": an error
		listen  string
		dual    bool
	}{
		{AnyFamily, "127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:80", false},
		{AnyFamily, "127.0.0.1:http", "127.0.0.1:80", "127.0.0.1:80", false},
		{AnyFamily, ":80", "127.0.0.1:80", "[::]:80", true},
		{IPv4, ":80", "127.0.0.1:80", "0.0.0.0:80", false},
		{IPv6, ":80", "[::1]:80", "[::]:80", false},
		{AnyFamily, "0.0.0.0:80", "127.0.0.1:80", "[::]:80", true},
		{IPv4, "0.0.0.0:80", "127.0.0.1:80", "0.0.0.0:80", false},
		{AnyFamily, "[::]:80", "[::1]:80", "[::]:80", true},
		{IPv6, "[::]:0", "[::1]:0", "[::]:0", false},
		{AnyFamily, "[fe80::1%eth0]:80", "[fe80::1%eth0]:80", "[fe80::1%eth0]:80", false},
		{AnyFamily, "[::ffff:10.0.0.1]:80", "10.0.0.1:80", "10.0.0.1:80", false},
		{IPv4, "[::1]:80", "", "", false},
		{IPv6, "127.0.0.1:80", "", "", false},
		{IPv6, "[::ffff:10.0.0.1]:80", "", "", false},
		{AnyFamily, "127.0.0.1", "", "", false},
		{AnyFamily, "127.0.0.1:65536", "", "", false},
		{AnyFamily, "127.0.0.1:-1", "", "", false},
		{AnyFamily, "127.0.0.1:nonesuch", "", "", false},
		{AnyFamily, "::1:80", "", "", false},
		{AnyFamily, "[::1:80", "", "", false},
	} {
		addrs, err := LookupDial(t.Context(), nil, c.f, c.address)
		if c.dial == "" {
			require.Error(t, err, c.address)
			var ae *net.AddrError
			var de *net.DNSError
			assert.True(t, errors.As(err, &ae) || errors.As(err, &de), "%s: %v", c.address, err)
		} else {
			require.NoError(t, err, c.address)
			assert.Equal(t, []netip.AddrPort{netip.MustParseAddrPort(c.dial)}, addrs)
		}
		a, dual, err := LookupListen(t.Context(), nil, c.f, c.address)
		if c.listen == "" {
			require.Error(t, err, c.address)
			continue
		}
		require.NoError(t, err, c.address)
		assert.Equal(t, netip.MustParseAddrPort(c.listen), a, c.address)
		assert.Equal(t, c.dual, dual, c.address)
	}
	_, err := LookupDial(t.Context(), nil, AnyFamily, "")
	assert.Error(t, err)
	a, dual, err := LookupListen(t.Context(), nil, AnyFamily, "")
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddrPort("[::]:0"), a)
	assert.True(t, dual)
}

// nameServer answers on a UDP socket and gives a resolver that asks it.
func nameServer(t *testing.T, hosts map[string][]string) *net.Resolver {
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
			if m, ok := answer(hosts, buf[:n]); ok {
				pc.WriteTo(m, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// answer makes the reply to query; a host without addresses gets none.
func answer(hosts map[string][]string, query []byte) ([]byte, bool) {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil, false
	}
	q := m.Questions[0]
	addrs, known := hosts[q.Name.String()]
	if known && len(addrs) == 0 {
		return nil, false
	}
	m.Response, m.Authoritative, m.RecursionAvailable = true, true, true
	m.Additionals = nil
	if !known {
		m.RCode = dnsmessage.RCodeNameError
	}
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
	b, err := m.Pack()
	return b, err == nil
}

func TestLookupNames(t *testing.T) {
	r := nameServer(t, map[string][]string{
		"both.test.":   {"10.0.0.1", "10.0.0.2", "fd00::1"},
		"six.test.":    {"fd00::6"},
		"silent.test.": {},
	})
	addrs, err := LookupDial(t.Context(), r, AnyFamily, "both.test:80")
	require.NoError(t, err)
	assert.ElementsMatch(t, []netip.AddrPort{
		netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("[fd00::1]:80"),
	}, addrs)
	addrs, err = LookupDial(t.Context(), r, IPv6, "both.test:80")
	require.NoError(t, err)
	assert.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:80")}, addrs)
	a, _, err := LookupListen(t.Context(), r, AnyFamily, "both.test:80")
	require.NoError(t, err)
	assert.True(t, a.Addr().Is4(), "a listener takes IPv4 first, as package net's")

	var de *net.DNSError
	_, err = LookupDial(t.Context(), r, IPv4, "six.test:80")
	require.Error(t, err)
	_, err = LookupDial(t.Context(), r, AnyFamily, "nowhere.test:80")
	require.ErrorAs(t, err, &de)
	assert.True(t, de.IsNotFound)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err = LookupDial(ctx, r, AnyFamily, "silent.test:80")
	require.Error(t, err)
	assert.Less(t, time.Since(start), 3*time.Second, "the context ends name resolution")
	require.ErrorAs(t, err, &de)
	assert.True(t, de.IsTimeout)
}
