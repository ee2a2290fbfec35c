package rdmanet_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// Whoever reads an error in a log learns from it which way was gone, how far, and what to do where that is known: both addresses of
// what stands, the one asked for otherwise, the device and the phase. The text has what the fields have.
func TestErrorsNameWhatFailed(t *testing.T) {
	l := listen(t, nil)
	reset := func(t *testing.T) (client, server *rdmanet.Conn) {
		client, server = pair(t)
		require.NoError(t, server.SetLinger(0))
		require.NoError(t, server.Close())
		return client, server
	}
	unused := unusedPort(t)
	standing, _ := pair(t)
	at := standing.Stats()
	for _, c := range []struct {
		name, op, net string
		phase         rdmanet.Phase
		both, hint    bool // both addresses, a hint
		do            func(t *testing.T) error
	}{
		{"refused", "dial", "rdma", rdmanet.PhaseConnect, false, true, func(*testing.T) error {
			_, err := rdmanet.Dial("rdma", unused)
			return err
		}},
		{"refused, from an address", "dial", "rdma", rdmanet.PhaseConnect, true, true, func(*testing.T) error {
			_, err := (&rdmanet.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local4)}}).Dial("rdma", unused)
			return err
		}},
		{"not admitted", "dial", "rdma", rdmanet.PhaseConnect, false, true, func(t *testing.T) error {
			l := listen(t, &rdmanet.ListenConfig{Admit: func(*rdmanet.Request) error { return assert.AnError }})
			_, err := rdmanet.Dial("rdma", l.Addr().String())
			return err
		}},
		{"no answer", "dial", "rdma", rdmanet.PhaseConnect, false, true, func(t *testing.T) error {
			_, err := rdmanet.DialTimeout("rdma", silent(t), 50*time.Millisecond)
			return err
		}},
		{"no service", "dial", "rdma-ud", rdmanet.PhaseConnect, false, true, func(*testing.T) error {
			_, err := rdmanet.Dial("rdma-ud", unused)
			return err
		}},
		{"port in use", "listen", "rdma", rdmanet.PhaseRoute, false, true, func(*testing.T) error {
			_, err := rdmanet.Listen("rdma", l.Addr().String())
			return err
		}},
		{"reset while reading", "read", "rdma", rdmanet.PhaseTransfer, true, false, func(t *testing.T) error {
			client, _ := reset(t)
			require.NoError(t, client.SetDeadline(time.Now().Add(10*time.Second)))
			_, err := client.Read(make([]byte, 1))
			return err
		}},
		{"reset while writing", "write", "rdma", rdmanet.PhaseTransfer, true, false, func(t *testing.T) error {
			client, _ := reset(t)
			require.NoError(t, client.SetDeadline(time.Now().Add(10*time.Second)))
			for {
				if _, err := client.Write(make([]byte, 1)); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
		}},
		{"written after the end", "write", "rdma", rdmanet.PhaseTransfer, true, false, func(t *testing.T) error {
			client, _ := pair(t)
			require.NoError(t, client.CloseWrite())
			_, err := client.Write(make([]byte, 1))
			return err
		}},
		{"a datagram too long", "write", "rdma-ud", rdmanet.PhaseTransfer, true, true, func(t *testing.T) error {
			pc, err := rdmanet.ListenPacket("rdma-ud", net.JoinHostPort(local4, "0"))
			require.NoError(t, err)
			t.Cleanup(func() { pc.Close() })
			c, err := rdmanet.Dial("rdma-ud", pc.LocalAddr().String())
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			_, err = c.Write(make([]byte, 1<<16))
			return err
		}},
		{"no group", "set", "rdma-ud", rdmanet.PhaseResolve, true, true, func(t *testing.T) error {
			pc, err := rdmanet.ListenPacket("rdma-ud", net.JoinHostPort(local4, "0"))
			require.NoError(t, err)
			t.Cleanup(func() { pc.Close() })
			_, err = pc.(*rdmanet.PacketConn).JoinGroup(context.Background(), nil, l.Addr(), 0)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do(t)
			var op *net.OpError
			require.ErrorAs(t, err, &op)
			e, ok := op.Err.(*rdmanet.Error)
			require.True(t, ok, "%T", op.Err)
			assert.Equal(t, c.op, op.Op)
			assert.Equal(t, c.net, op.Net)
			assert.Equal(t, c.phase, e.Phase)
			assert.Equal(t, at.Provider, e.Provider, "%v", err)
			if c.op == "listen" { // on all devices of a provider
				assert.Contains(t, err.Error(), ": "+at.Provider+": ")
			} else {
				assert.Equal(t, at.Device, e.Device, "%v", err)
				assert.Contains(t, err.Error(), ": "+at.Device+": ")
				assert.NotContains(t, err.Error(), at.Provider+": ")
			}
			require.NotNil(t, op.Addr)
			assert.Contains(t, err.Error(), op.Addr.String())
			if c.both {
				require.NotNil(t, op.Source, "%v", err)
				assert.Contains(t, err.Error(), op.Source.String()+"->")
			}
			assert.Equal(t, c.hint, e.Hint != "", "%v", err)
			t.Log(err)
		})
	}
}
