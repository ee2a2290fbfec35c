// Package quic runs QUIC over rdmanet's datagrams. It needs no guest.
package quic

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/rdmanet"
)

func TestMain(m *testing.M) {
	testnet.Main()
	os.Exit(m.Run())
}

// transport is QUIC on datagrams of the embedded device.
func transport(t *testing.T, ip string) (*quic.Transport, *rdmanet.PacketConn) {
	t.Helper()
	pc, err := (&rdmanet.ListenConfig{Device: "softroce"}).ListenPacket(t.Context(), "rdma-ud", net.JoinHostPort(ip, "0"))
	require.NoError(t, err)
	tr := &quic.Transport{Conn: pc}
	t.Cleanup(func() {
		assert.NoError(t, tr.Close())
		assert.NoError(t, pc.Close())
	})
	return tr, pc.(*rdmanet.PacketConn)
}

const protocol = "echo"

// identity is a server's TLS configuration, and that of those who trust it.
func identity(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"server"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{protocol}},
		&tls.Config{RootCAs: pool, ServerName: "server", NextProtos: []string{protocol}}
}

// echo answers each stream of each connection with what it says.
func echo(t *testing.T, tr *quic.Transport, conf *tls.Config) {
	t.Helper()
	l, err := tr.Listen(conf, nil)
	require.NoError(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() {
				for {
					s, err := c.AcceptStream(context.Background())
					if err != nil {
						return
					}
					wg.Go(func() {
						_, _ = io.Copy(s, s)
						_ = s.Close()
					})
				}
			})
		}
	})
}

// The embedded device has packets of 4096 bytes on a loopback interface.
func TestTransport(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		t.Run(ip, func(t *testing.T) {
			serverTLS, clientTLS := identity(t)
			server, pc := transport(t, ip)
			require.GreaterOrEqual(t, pc.MaxPayload(), 1200)
			echo(t, server, serverTLS)
			client, own := transport(t, ip)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			defer wg.Wait()
			for range 2 { // connections on one socket
				c, err := client.Dial(ctx, pc.LocalAddr(), clientTLS, nil)
				require.NoError(t, err)
				for range 3 {
					wg.Go(func() { question(ctx, t, c) })
				}
				wg.Wait()
				assert.NoError(t, c.CloseWithError(0, ""))
			}
			require.Greater(t, own.Stats().MessagesRead, uint64(6<<20/1500))
			require.Zero(t, own.Stats().Truncated)
		})
	}
}

func question(ctx context.Context, t *testing.T, c *quic.Conn) {
	s, err := c.OpenStreamSync(ctx)
	if !assert.NoError(t, err) {
		return
	}
	want := make([]byte, 1<<20)
	_, _ = rand.Read(want)
	done := make(chan error, 1)
	go func() {
		_, err := s.Write(want)
		done <- errors.Join(err, s.Close())
	}()
	got, err := io.ReadAll(s)
	assert.NoError(t, err)
	assert.NoError(t, <-done)
	assert.True(t, bytes.Equal(want, got), "%d bytes", len(got))
}

// On an Ethernet interface packets have 1024 bytes, and QUIC needs 1200 (RFC 9000, 14). quic-go takes EMSGSIZE for a matter of
// path MTU discovery, unless its configuration says how long the first packet is.
func TestTooSmall(t *testing.T) {
	if !testnet.Own() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this system does not let us have a network namespace")
		}
		t.Skip("this system does not let us have a network namespace")
	}
	for _, args := range []string{"link add qa type veth peer name qb", "link set qb up", "link set qa up", "addr add 10.9.7.1/24 dev qa"} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s (package iproute2): %s", args, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "qa").Run() })
	serverTLS, clientTLS := identity(t)
	server, pc := transport(t, "10.9.7.1")
	require.Equal(t, 1024, pc.MaxPayload())
	echo(t, server, serverTLS)
	client, _ := transport(t, "10.9.7.1")
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client.Dial(ctx, pc.LocalAddr(), clientTLS, &quic.Config{InitialPacketSize: 1200})
	require.ErrorContains(t, err, "datagram of 1200 bytes, the limit is 1024")
	require.ErrorContains(t, err, "MaxPayload")
	require.Less(t, time.Since(start), 10*time.Second, "at once")

	_, err = client.Dial(ctx, pc.LocalAddr(), clientTLS, &quic.Config{HandshakeIdleTimeout: time.Second})
	var ne net.Error
	require.ErrorAs(t, err, &ne)
	require.True(t, ne.Timeout(), "%v: says nothing of the cause, hence the advice to set InitialPacketSize", err)
}
