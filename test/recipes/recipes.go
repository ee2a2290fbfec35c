// Package recipes has what docs/recipes.md shows of libraries that make connections of their own. Its tests run each of them against a real
// server, which cmd/rdmanet proxy puts on RDMA.
package recipes

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/quic-go/quic-go"
	"github.com/redis/go-redis/v9"

	"github.com/go-rdma/rdma/rdmanet"
)

// ServeHTTP serves until it fails.
func ServeHTTP(addr string, handler http.Handler) error {
	l, err := rdmanet.Listen("rdma", addr) // was net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return http.Serve(l, handler)
}

// ServeHTTPS serves HTTP/2 and HTTP/1.1 until it fails.
func ServeHTTPS(addr string, handler http.Handler, config *tls.Config) error {
	l, err := rdmanet.Listen("rdma", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, TLSConfig: config, ReadHeaderTimeout: 10 * time.Second}
	return server.ServeTLS(l, "", "") // the certificates are config's
}

// HTTPClient speaks HTTP/1.1, and HTTP/2 where it is https.
func HTTPClient(config *tls.Config) *http.Client {
	tr := &http.Transport{
		DialContext:       (&rdmanet.Dialer{}).DialContext, // was (&net.Dialer{}).DialContext
		TLSClientConfig:   config,
		ForceAttemptHTTP2: true, // a Transport with a dialer of its own speaks HTTP/1.1 otherwise, on TCP too
	}
	return &http.Client{Transport: tr}
}

// DialTLS is tls.Dial on RDMA.
func DialTLS(ctx context.Context, addr string, config *tls.Config) (*tls.Conn, error) {
	c, err := (&rdmanet.Dialer{}).DialContext(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, config) // config.ServerName must be set, which tls.Dial does
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// ServeH2C serves HTTP/2 without TLS, and HTTP/1.1, until it fails.
func ServeH2C(l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server.Serve(l)
}

// H2CClient speaks HTTP/2 without TLS.
func H2CClient() *http.Client {
	tr := &http.Transport{DialContext: (&rdmanet.Dialer{}).DialContext, Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: tr}
}

// NewRedis is a client of a Redis server.
func NewRedis(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                  addr,
		Dialer:                (&rdmanet.Dialer{Timeout: 10 * time.Second}).DialContext,
		ContextTimeoutEnabled: true, // or a context's deadline ends no command, on TCP neither
	})
}

// NewPool is a pool of connections to a PostgreSQL server.
func NewPool(ctx context.Context, connString string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.DialFunc = (&rdmanet.Dialer{Timeout: 10 * time.Second}).DialContext
	return pgxpool.NewWithConfig(ctx, config)
}

// NewNATS is a client of a NATS server.
func NewNATS(url string) (*nats.Conn, error) {
	return nats.Connect(url, nats.SetCustomDialer(&rdmanet.Dialer{Timeout: 10 * time.Second}))
}

// ListenQUIC announces a service of QUIC, on datagrams of the embedded device.
func ListenQUIC(ctx context.Context, addr string, config *tls.Config) (*quic.Transport, *quic.Listener, error) {
	pc, err := (&rdmanet.ListenConfig{}).ListenPacket(ctx, "rdma-ud", addr) // was net.ListenPacket("udp", addr)
	if err != nil {
		return nil, nil, err
	}
	tr := &quic.Transport{Conn: pc}
	l, err := tr.Listen(config, &quic.Config{InitialPacketSize: 1200}) // and not more than MaxPayload
	if err != nil {
		pc.Close()
	}
	return tr, l, err
}

// DialQUIC connects to such a service.
func DialQUIC(ctx context.Context, addr string, config *tls.Config) (*quic.Transport, *quic.Conn, error) {
	to, err := rdmanet.ResolveAddr("rdma-ud", addr)
	if err != nil {
		return nil, nil, err
	}
	pc, err := (&rdmanet.ListenConfig{}).ListenPacket(ctx, "rdma-ud", ":0")
	if err != nil {
		return nil, nil, err
	}
	tr := &quic.Transport{Conn: pc}
	c, err := tr.Dial(ctx, to, config, &quic.Config{InitialPacketSize: 1200})
	if err != nil {
		pc.Close()
	}
	return tr, c, err
}
