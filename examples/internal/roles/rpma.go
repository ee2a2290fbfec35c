package roles

import (
	"context"
	"errors"
	"io"

	"github.com/go-rdma/rdma/rpma"
)

// LocalPeer opens the device that serves an address of this host.
func LocalPeer(addr string) (*rpma.Peer, error) {
	d, err := rpma.LookupLocal(addr)
	if err != nil {
		return nil, err
	}
	return rpma.NewPeer(d)
}

// RemotePeer opens the device that an address is reached from.
func RemotePeer(ctx context.Context, addr string) (*rpma.Peer, error) {
	d, err := rpma.LookupRemote(ctx, addr)
	if err != nil {
		return nil, err
	}
	return rpma.NewPeer(d)
}

// Ended waits until the peer has ended the connection.
func Ended(ctx context.Context, c *rpma.Conn) error {
	select {
	case <-c.Done():
		if err := c.Err(); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
