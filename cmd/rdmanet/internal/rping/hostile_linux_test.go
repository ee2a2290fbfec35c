package rping

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs"
)

func TestMain(m *testing.M) {
	testnet.Main()
	goleak.VerifyTestMain(m)
}

const device = "softroce"

// ended is what a server says of a client.
type ended struct {
	pings int
	err   error
}

func serve(t *testing.T) (addr netip.AddrPort, ends chan ended) {
	t.Helper()
	s, err := Listen(t.Context(), device, netip.MustParseAddrPort("127.0.0.1:0"), false)
	require.NoError(t, err)
	ends = make(chan ended, 100)
	s.Ended = func(_ netip.AddrPort, pings int, err error) { ends <- ended{pings, err} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
		open, _, bytes := rc.Usage()
		assert.Zero(t, open, "devices in use")
		assert.Zero(t, bytes, "bytes of memory in use")
	})
	return s.Addr(), ends
}

// attack connects as a client that may do anything.
func attack(t *testing.T, addr netip.AddrPort, p verbs.ConnParam, access verbs.Access) (*link, error) {
	t.Helper()
	id, err := cm.Default().Resolve(t.Context(), device, verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: addr})
	require.NoError(t, err)
	l, err := newLink(id, 4096, access)
	require.NoError(t, err)
	if _, err := l.conn.Connect(t.Context(), &p); err != nil {
		l.close()
		return nil, err
	}
	l.conn.Start()
	return l, nil
}

// Whatever a client says, only its own connection ends, and the server goes on.
func TestHostileClients(t *testing.T) {
	addr, ends := serve(t)
	const all = verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite
	good := func(l *link) buffer { return buffer{l.regions[0].Addr(), l.regions[0].RKey(), 4096} }
	for _, c := range []struct {
		name   string
		access verbs.Access
		bad    func(l *link) buffer
		want   string
	}{
		{"no size", all, func(l *link) buffer { b := good(l); b.size = 0; return b }, "speaks another protocol: a buffer of 0 bytes"},
		{"too much", all, func(l *link) buffer { b := good(l); b.size = MaxSize + 1; return b }, "a buffer of 65537 bytes"},
		{"round the end of memory", all, func(l *link) buffer { b := good(l); b.addr = ^uint64(0); return b }, "beyond the end of memory"},
		{"more than its memory", all, func(l *link) buffer { b := good(l); b.size = MaxSize; return b }, "remote access error"},
		{"memory it has not", all, func(l *link) buffer { b := good(l); b.key ^= 0x5a5a; return b }, "remote access error"},
		{"memory that is not to be read", verbs.LocalWrite, good, "remote access error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := attack(t, addr, connParam, c.access)
			require.NoError(t, err)
			defer l.close()
			_ = l.send(t.Context(), c.bad(l)) // the server may be faster in ending the connection
			e := <-ends
			assert.ErrorContains(t, e.err, c.want)
			assert.Zero(t, e.pings)
		})
	}
	t.Run("the second buffer is not to be written", func(t *testing.T) {
		l, err := attack(t, addr, connParam, verbs.RemoteRead)
		require.NoError(t, err)
		defer l.close()
		require.NoError(t, l.send(t.Context(), good(l)))
		var msg [messageSize]byte
		_, err = l.receive(t.Context(), &msg)
		require.NoError(t, err)
		_ = l.send(t.Context(), good(l))
		assert.ErrorContains(t, (<-ends).err, "remote access error")
	})
	t.Run("a short message", func(t *testing.T) {
		l, err := attack(t, addr, connParam, all)
		require.NoError(t, err)
		defer l.close()
		_ = l.do(t.Context(), verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: l.control.Addr(), Length: 5, LKey: l.control.LKey()}}})
		assert.ErrorContains(t, (<-ends).err, "a message of 5 bytes")
	})
	t.Run("a long message", func(t *testing.T) {
		l, err := attack(t, addr, connParam, all)
		require.NoError(t, err)
		defer l.close()
		_ = l.do(t.Context(), verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: l.control.Addr(), Length: 50, LKey: l.control.LKey()}}})
		assert.Error(t, (<-ends).err)
	})
	t.Run("more messages than there are receives", func(t *testing.T) {
		l, err := attack(t, addr, connParam, all)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for range 4 * receives { // and the answers are not taken
			if l.send(ctx, good(l)) != nil {
				break
			}
		}
		l.close()
		e := <-ends
		t.Log(e.pings, e.err) // each is as good as any: the client may have had its answers
	})
	t.Run("nobody may READ from it", func(t *testing.T) {
		p := connParam
		p.ResponderResources = 0
		_, err := attack(t, addr, p, all)
		rej := new(verbs.RejectError)
		require.ErrorAs(t, err, &rej)
		assert.ErrorContains(t, (<-ends).err, "it is no rping")
	})
	c, err := Connect(t.Context(), device, netip.Addr{}, addr, 100)
	require.NoError(t, err)
	_, err = c.Ping(t.Context())
	require.NoError(t, err)
	c.Close()
	assert.Equal(t, ended{1, nil}, <-ends)
}

// A client that is given too little, or another's data, says so.
func TestHostileServer(t *testing.T) {
	l, err := cm.Default().Listen(t.Context(), device, verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.MustParseAddrPort("127.0.0.1:0")})
	require.NoError(t, err)
	defer l.Close()
	for want, size := range map[string]uint32{"the data came back changed: byte 0 of 64 is 0x0 instead of 0x72": messageSize, "the server answers with 7 bytes": 7} {
		done := make(chan error, 1)
		go func() {
			done <- func() error {
				id, err := l.Parts[0].GetRequest(t.Context())
				if err != nil {
					return err
				}
				s, err := newLink(id, 64, verbs.LocalWrite)
				if err != nil {
					return err
				}
				defer s.close()
				s.conn.Start()
				p := connParam
				if err := s.conn.Accept(&p); err != nil {
					return err
				}
				for range 2 {
					var msg [messageSize]byte
					if _, err := s.receive(t.Context(), &msg); err != nil {
						return err
					}
					// It says that all was done, and has done nothing.
					if err := s.do(t.Context(), verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{{Addr: s.control.Addr(), Length: size, LKey: s.control.LKey()}}}); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
		c, err := Connect(t.Context(), device, netip.Addr{}, l.Addr(), 64)
		require.NoError(t, err)
		_, err = c.Ping(t.Context())
		assert.ErrorContains(t, err, want)
		c.Close()
		<-done // its errors are this client's end
	}
}

// Clients come and go at once, and each gets its own data back.
func TestManyClients(t *testing.T) {
	addr, ends := serve(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			c, err := Connect(t.Context(), device, netip.Addr{}, addr, 1+i*4095)
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			for range 20 {
				_, err := c.Ping(t.Context())
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	for range 16 {
		assert.Equal(t, ended{20, nil}, <-ends)
	}
}

// What waits ends with its context, and the server's end reaches its clients.
func TestContexts(t *testing.T) {
	s, err := Listen(t.Context(), device, netip.MustParseAddrPort("127.0.0.1:0"), false)
	require.NoError(t, err)
	opened := make(chan struct{})
	s.Opened = func(netip.AddrPort, string) { close(opened) }
	serving, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(serving) }()
	c, err := Connect(t.Context(), device, netip.Addr{}, s.Addr(), 64)
	require.NoError(t, err)
	<-opened

	late := fmt.Errorf("it takes too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, late)
	defer cancel()
	var msg [messageSize]byte
	_, err = c.l.receive(ctx, &msg)
	assert.ErrorIs(t, err, late)

	stop()
	_, err = c.l.receive(t.Context(), &msg)
	assert.ErrorIs(t, err, errDisconnected)
	assert.ErrorIs(t, <-done, context.Canceled)
	c.Close()
}
