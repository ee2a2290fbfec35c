package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/quic-go/quic-go"
)

// A stream of QUIC's as a net.Conn, one on each connection. QUIC is never without TLS, so
// this side encrypts and the others do not.

const quicProto = "go-rdma-bench"

// quicListener accepts connections, and the one stream of each.
type quicListener struct {
	l      *quic.Listener
	queue  chan net.Conn
	ctx    context.Context
	cancel context.CancelFunc
}

func listenQUIC(context.Context) (net.Listener, error) {
	cert, err := selfSigned()
	if err != nil {
		return nil, err
	}
	l, err := quic.ListenAddr(loopback, &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{quicProto}, MinVersion: tls.VersionTLS13,
	}, nil)
	if err != nil {
		return nil, err
	}
	ql := &quicListener{l: l, queue: make(chan net.Conn)}
	ql.ctx, ql.cancel = context.WithCancel(context.Background())
	go ql.run()
	return ql, nil
}

func (l *quicListener) run() {
	for {
		c, err := l.l.Accept(l.ctx)
		if err != nil {
			l.cancel()
			return
		}
		go func() {
			s, err := c.AcceptStream(l.ctx) // comes with its first bytes
			if err != nil {
				_ = c.CloseWithError(0, "") // the peer is gone, or the listener
				return
			}
			select {
			case l.queue <- &quicConn{Stream: s, conn: c}:
			case <-l.ctx.Done():
				_ = c.CloseWithError(0, "") // likewise
			}
		}()
	}
}

func (l *quicListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *quicListener) Close() error {
	l.cancel()
	return l.l.Close()
}

func (l *quicListener) Addr() net.Addr { return l.l.Addr() }

func dialQUIC(ctx context.Context, addr string) (net.Conn, error) {
	// A process that has measured is who it talks to; nobody else is on loopback.
	c, err := quic.DialAddr(ctx, addr, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{quicProto}, MinVersion: tls.VersionTLS13,
	}, nil)
	if err != nil {
		return nil, err
	}
	s, err := c.OpenStreamSync(ctx)
	if err != nil {
		_ = c.CloseWithError(0, "") // the first error says more
		return nil, err
	}
	return &quicConn{Stream: s, conn: c}, nil
}

type quicConn struct {
	*quic.Stream
	conn *quic.Conn
}

func (c *quicConn) LocalAddr() net.Addr  { return c.conn.LocalAddr() }
func (c *quicConn) RemoteAddr() net.Addr { return c.conn.RemoteAddr() }

// Close ends the connection with its stream. What is on its way is lost; nothing is when a sample is over.
func (c *quicConn) Close() error {
	_ = c.Stream.Close() // the peer may have closed first
	return c.conn.CloseWithError(0, "")
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: quicProto},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
