package rping

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Client pings a server.
type Client struct {
	l     *link
	id    verbs.CMID
	count int
}

// Connect connects to a server. devices is a list as that of a rdmanet.Dialer; size is of the data.
func Connect(ctx context.Context, devices string, local netip.Addr, server netip.AddrPort, size int) (*Client, error) {
	if size < MinSize || size > MaxSize {
		return nil, fmt.Errorf("pings have %d to %d bytes, not %d", MinSize, MaxSize, size)
	}
	var c *Client
	err := cm.Default().Dial(ctx, devices, verbs.CMIDAttr{
		PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(local, 0), Remote: server,
	}, func(id verbs.CMID) error {
		l, err := newLink(id, size, verbs.RemoteRead, verbs.LocalWrite|verbs.RemoteWrite)
		if err != nil {
			return err
		}
		p := connParam
		if _, err := l.conn.Connect(ctx, &p); err != nil {
			l.close()
			return err
		}
		l.conn.Start()
		c = &Client{l: l, id: id}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Device names the device of the connection and its provider.
func (c *Client) Device() (name, provider string) { return c.l.device(), c.l.conn.Device().Provider() }

// LocalAddr is this end of the connection.
func (c *Client) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// RemoteAddr is the server's end.
func (c *Client) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Retransmits counts packets that were sent again, where the device tells.
func (c *Client) Retransmits() uint64 { return c.l.conn.QP().Stats().Retransmits }

// Ping has the server read data and write them back, and returns how long that took. What comes back is compared. After an error
// only Close is of use.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	source, sink := c.l.regions[0], c.l.regions[1]
	fill(source.Bytes(), c.count)
	clear(sink.Bytes())
	c.count++
	start := time.Now()
	for _, mr := range []region{source, sink} {
		if err := c.l.send(ctx, buffer{mr.Addr(), mr.RKey(), uint32(len(mr.Bytes()))}); err != nil {
			return 0, err
		}
		var msg [messageSize]byte
		if n, err := c.l.receive(ctx, &msg); err != nil {
			return 0, err
		} else if n != messageSize {
			return 0, fmt.Errorf("the server answers with %d bytes, rping would with %d: it is another program", n, messageSize)
		}
	}
	took := time.Since(start)
	if got, want := sink.Bytes(), source.Bytes(); !bytes.Equal(got, want) {
		i := 0
		for got[i] == want[i] {
			i++
		}
		return 0, fmt.Errorf("the data came back changed: byte %d of %d is %#x instead of %#x", i, len(want), got[i], want[i])
	}
	return took, nil
}

// Close disconnects.
func (c *Client) Close() { c.l.close() }
