// tls tells a peer of a region over TLS, on a stream of package rdmanet, instead of in the private data of a connection.
//
// Private data is neither secret nor authenticated: whoever is on the path can change the address, the key or the size of the region in it, or
// the peer configuration, so that data seems persistent that is not. Over TLS, with certificates at both ends, what was changed is not
// accepted. The RDMA connection itself is bound to the TLS session by a random number that it brings along, and one that brings
// none that the server has given is refused. What is written and read on it stays in the clear: see docs/security.md.
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-rdma/rdma/examples/internal/identities"
	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/rpma"
)

func main() {
	ids, err := identities.New()
	if err != nil {
		panic(err) // there is no randomness
	}
	roles.Main(newExample(ids))
}

func newExample(ids *identities.Identities) roles.Example {
	return roles.Example{
		Serve: func(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
			return serve(ctx, out, addr, ready, ids)
		},
		Dial:     func(ctx context.Context, out io.Writer, addr string) error { return dial(ctx, out, addr, ids) },
		Together: "their keys and certificates are made here, and are in no file",
	}
}

// offer is what the server says over TLS.
type offer struct {
	nonce  [16]byte // to be the private data of the request to connect
	region rpma.RemoteMR
	config rpma.PeerConfig
	port   uint16 // of the endpoint
}

const offerSize = 16 + rpma.DescriptorSize + rpma.PeerConfigSize + 2

func (o *offer) write(w io.Writer) error {
	b, err := o.region.AppendBinary(o.nonce[:])
	if err != nil {
		return err
	}
	if b, err = o.config.AppendBinary(b); err != nil {
		return err
	}
	_, err = w.Write(binary.BigEndian.AppendUint16(b, o.port))
	return err
}

func readOffer(r io.Reader) (o offer, err error) {
	b := make([]byte, offerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return o, err
	}
	n := copy(o.nonce[:], b)
	if o.region, err = rpma.ParseRemoteMR(b[n:]); err != nil {
		return o, err
	}
	n += rpma.DescriptorSize
	if err := o.config.UnmarshalBinary(b[n:]); err != nil {
		return o, err
	}
	o.port = binary.BigEndian.Uint16(b[n+rpma.PeerConfigSize:])
	return o, nil
}

// serve offers a region to one client. It ends when that has written to it.
func serve(ctx context.Context, out io.Writer, addr string, ready func(string), ids *identities.Identities) (err error) {
	peer, err := roles.LocalPeer(addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	l, err := new(rdmanet.ListenConfig).Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	host, _, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	ep, err := peer.Listen(net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	defer ep.Close()
	ready(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		done, err := serveOne(ctx, out, peer, ep, tls.Server(c, ids.Server))
		_ = c.Close()
		if err != nil {
			fmt.Fprintln(out, "a client gave up:", err)
		}
		if done || ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// serveOne serves a client that has proved who it is, and returns whether it has written something.
func serveOne(ctx context.Context, out io.Writer, peer *rpma.Peer, ep *rpma.Endpoint, c *tls.Conn) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		return false, err
	}
	// A region for this client alone: its key is worth nothing when it has gone.
	mr, err := peer.Alloc(4096, rpma.WriteDst|rpma.FlushVisibility)
	if err != nil {
		return false, err
	}
	defer mr.Close()
	descriptor, err := mr.MarshalBinary()
	if err != nil {
		return false, err
	}
	var o offer
	if _, err := rand.Read(o.nonce[:]); err != nil {
		return false, err
	}
	if o.region, err = rpma.ParseRemoteMR(descriptor); err != nil {
		return false, err
	}
	_, port, err := net.SplitHostPort(ep.Addr().String())
	if err != nil {
		return false, err
	}
	if _, err := fmt.Sscan(port, &o.port); err != nil {
		return false, err
	}
	if err := o.write(c); err != nil {
		return false, err
	}
	// The client says whether it has taken the offer, so that nobody waits for one that has not.
	var ok [1]byte
	if _, err := io.ReadFull(c, ok[:]); err != nil {
		return false, err
	}
	for {
		req, err := ep.Accept(ctx, nil)
		if err != nil {
			return false, err
		}
		if p := req.PrivateData(); len(p) < len(o.nonce) || [16]byte(p) != o.nonce {
			fmt.Fprintln(out, "refused a connection of somebody who has not asked over TLS")
			if err := req.Reject([]byte("ask over TLS")); err != nil {
				return false, err
			}
			continue
		}
		conn, err := req.Connect(ctx, nil)
		if err != nil {
			return false, err
		}
		defer conn.Close() //nolint:gocritic // the loop ends here
		if err := roles.Ended(ctx, conn); err != nil {
			return false, err
		}
		fmt.Fprintf(out, "%s wrote %q\n", c.ConnectionState().PeerCertificates[0].Subject.CommonName, mr.Bytes()[:5])
		return true, nil
	}
}

// dial shows what happens to an offer that was changed on its way, and to a connection without one; then it does as it should.
func dial(ctx context.Context, out io.Writer, addr string, ids *identities.Identities) (err error) {
	peer, err := roles.RemotePeer(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()

	_, _, err = ask(ctx, addr, ids.Client, func(c net.Conn) net.Conn { return &tampered{Conn: c} })
	if err == nil {
		return errors.New("an offer that was changed on its way was accepted")
	}
	fmt.Fprintln(out, "an offer that was changed on its way:", err)

	o, c, err := ask(ctx, addr, ids.Client, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	at := net.JoinHostPort(host, fmt.Sprint(o.port))
	if _, err := connect(ctx, peer, at, make([]byte, 16)); err == nil {
		return errors.New("a connection without the server's number was accepted")
	}
	conn, err := connect(ctx, peer, at, o.nonce[:])
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.ApplyPeerConfig(o.config)
	mr, err := peer.Alloc(4096, rpma.WriteSrc)
	if err != nil {
		return err
	}
	defer mr.Close()
	n := copy(mr.Bytes(), "hello")
	return conn.Do(ctx, rpma.Write(o.region.Slice(0, n), mr.Slice(0, n)), rpma.Flush(o.region.Slice(0, n), rpma.Visibility))
}

// ask takes the server's offer.
func ask(ctx context.Context, addr string, cfg *tls.Config, through func(net.Conn) net.Conn) (offer, net.Conn, error) {
	c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", addr)
	if err != nil {
		return offer{}, nil, err
	}
	raw := c
	if through != nil {
		raw = through(c)
	}
	t := tls.Client(raw, cfg)
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err = t.HandshakeContext(ctx); err == nil {
		if through != nil {
			raw.(*tampered).on = true
		}
		var o offer
		if o, err = readOffer(t); err == nil {
			return o, t, nil
		}
	}
	_ = c.Close()
	return offer{}, nil, err
}

func connect(ctx context.Context, peer *rpma.Peer, addr string, private []byte) (*rpma.Conn, error) {
	req, err := peer.NewConnReq(ctx, addr, nil)
	if err != nil {
		return nil, err
	}
	return req.Connect(ctx, private)
}

// tampered is a connection on whose way somebody changes what comes from the server, once it is on.
type tampered struct {
	net.Conn
	on bool
}

func (t *tampered) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	if t.on && n > 0 {
		b[n-1] ^= 1
	}
	return n, err
}
