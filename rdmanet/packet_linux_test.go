package rdmanet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/rdmanet"
)

const soon = 10 * time.Second

// listenPacket serves datagrams until the test ends.
func listenPacket(t testing.TB, network, address string) *rdmanet.PacketConn {
	t.Helper()
	pc, err := rdmanet.ListenPacket(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	return pc.(*rdmanet.PacketConn)
}

// localPacket does so on one address of the tests.
func localPacket(t testing.TB) *rdmanet.PacketConn {
	t.Helper()
	return listenPacket(t, "rdma-ud", net.JoinHostPort(local4, "0"))
}

// dialPacket dials until the test ends.
func dialPacket(t testing.TB, to net.Addr) *rdmanet.PacketConn {
	t.Helper()
	c, err := rdmanet.Dial("rdma-ud", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c.(*rdmanet.PacketConn)
}

// gets reads one datagram in time.
func gets(t testing.TB, c *rdmanet.PacketConn, want string) *rdmanet.Addr {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(soon)))
	b := make([]byte, 5000)
	n, from, err := c.ReadFrom(b)
	require.NoError(t, err)
	require.Equal(t, want, string(b[:n]))
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	return from.(*rdmanet.Addr)
}

func getsNothing(t testing.TB, c *rdmanet.PacketConn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(40*time.Millisecond)))
	b := make([]byte, 5000)
	n, from, err := c.ReadFrom(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "%q from %v", b[:n], from)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
}

func says(t testing.TB, c *rdmanet.PacketConn, to net.Addr, what string) {
	t.Helper()
	n, err := c.WriteTo([]byte(what), to)
	require.NoError(t, err)
	require.Equal(t, len(what), n)
}

func TestPacketConn(t *testing.T) {
	for _, c := range []struct{ network, listen, dial string }{
		{"rdma-ud", local4 + ":0", ""}, {"udp", local4 + ":0", ""}, {"rdma-ud4", ":0", local4}, {"rdma-ud", ":0", local4},
		{"rdma-ud6", "[" + local6 + "]:0", ""}, {"rdma-ud", ":0", local6}, {"rdma-ud6", ":0", local6},
	} {
		t.Run(c.network+" "+c.listen+" "+c.dial, func(t *testing.T) {
			s := listenPacket(t, c.network, c.listen)
			local := s.LocalAddr().(*rdmanet.Addr)
			require.NotZero(t, local.Port)
			require.NotZero(t, local.UD.QPN)
			require.Equal(t, "rdma-ud", local.Network())
			require.Nil(t, s.RemoteAddr())
			to := &rdmanet.Addr{IP: local.IP, Port: local.Port}
			if c.dial != "" {
				to.IP = netip.MustParseAddr(c.dial)
			}
			d := dialPacket(t, to)
			remote := d.RemoteAddr().(*rdmanet.Addr)
			require.Equal(t, to.String(), remote.String())
			require.Equal(t, local.UD.QPN, remote.UD.QPN)
			n, err := d.Write([]byte("to the service"))
			require.NoError(t, err)
			require.Equal(t, 14, n)
			from := gets(t, s, "to the service")
			require.Equal(t, to.IP, from.IP)
			require.Equal(t, d.LocalAddr().(*rdmanet.Addr).UD.QPN, from.UD.QPN)
			require.Zero(t, from.Port)
			_, _, err = net.SplitHostPort(from.String())
			require.NoError(t, err)
			says(t, s, from, "to the client")
			b := make([]byte, 100)
			require.NoError(t, d.SetDeadline(time.Now().Add(soon)))
			n, err = d.Read(b)
			require.NoError(t, err)
			require.Equal(t, "to the client", string(b[:n]))

			// By address, without a connection, under both types; and by an address that was told.
			o := localPacket(t)
			if to.IP.Is6() {
				o = listenPacket(t, "rdma-ud6", "["+local6+"]:0")
			}
			says(t, o, net.UDPAddrFromAddrPort(to.AddrPort()), "one")
			gets(t, s, "one")
			says(t, o, to, "two")
			gets(t, s, "two")
			told := *local
			told.IP = to.IP
			says(t, o, &told, "three")
			from = gets(t, s, "three")
			says(t, s, from, "answer")
			gets(t, o, "answer")
			require.NoError(t, d.Close())
			require.NoError(t, s.Close())
		})
	}
}

func TestPacketZeroAndWhole(t *testing.T) {
	s := localPacket(t)
	d := dialPacket(t, s.LocalAddr())
	for _, n := range []int{0, 1, s.MaxPayload() - 1, s.MaxPayload()} {
		b := strings.Repeat("z", n)
		k, err := d.Write([]byte(b))
		require.NoError(t, err)
		require.Equal(t, n, k)
		gets(t, s, b)
	}
	_, err := d.Write(make([]byte, s.MaxPayload()+1))
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	require.Contains(t, err.Error(), fmt.Sprint(s.MaxPayload()))
	require.Contains(t, err.Error(), "MaxPayload")
	getsNothing(t, s)
	require.Zero(t, s.Stats().Truncated)
	_, err = d.Write([]byte("longer than the buffer"))
	require.NoError(t, err)
	b := make([]byte, 6)
	n, _, err := s.ReadFrom(b)
	require.NoError(t, err)
	require.Equal(t, "longer", string(b[:n]))
	getsNothing(t, s)
	st := s.Stats()
	require.EqualValues(t, 1, st.Truncated)
	require.EqualValues(t, 5, st.MessagesRead)
	require.EqualValues(t, 5, d.Stats().MessagesWritten)
	require.Equal(t, st.BytesRead, d.Stats().BytesWritten)
}

func TestPacketBatch(t *testing.T) {
	s := localPacket(t)
	d := dialPacket(t, s.LocalAddr())
	o := localPacket(t)
	out := make([]rdmanet.Message, 70)
	for i := range out {
		out[i] = rdmanet.Message{Buffers: [][]byte{{byte(i)}, {1, 2, 3}}, Imm: uint32(i) << 24, HasImm: i%2 == 0}
	}
	n, err := d.WriteBatch(out, 0)
	require.NoError(t, err)
	require.Equal(t, len(out), n)
	require.Equal(t, 4, out[69].N)
	in := make([]rdmanet.Message, 100)
	for i := range in {
		in[i].Buffers = [][]byte{make([]byte, 2), make([]byte, 2)}
	}
	require.NoError(t, s.SetReadDeadline(time.Now().Add(soon)))
	for got := 0; got < len(out); {
		n, err = s.ReadBatch(in[:], 0)
		require.NoError(t, err)
		require.Positive(t, n)
		for i := range n {
			m, k := &in[i], got+i
			require.Equal(t, 4, m.N)
			require.Equal(t, []byte{byte(k), 1}, m.Buffers[0])
			require.Equal(t, []byte{2, 3}, m.Buffers[1])
			require.Equal(t, k%2 == 0, m.HasImm)
			if m.HasImm {
				require.Equal(t, uint32(k)<<24, m.Imm)
			}
			require.Equal(t, d.LocalAddr().(*rdmanet.Addr).UD, m.Addr.(*rdmanet.Addr).UD)
		}
		got += n
	}
	// To several, and one that is wrong.
	to := s.LocalAddr()
	n, err = o.WriteBatch([]rdmanet.Message{
		{Buffers: [][]byte{[]byte("a")}, Addr: to}, {Buffers: [][]byte{[]byte("b")}, Addr: o.LocalAddr()}, {Buffers: [][]byte{[]byte("c")}},
	}, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	gets(t, s, "a")
	gets(t, o, "b")
	_, err = o.WriteBatch([]rdmanet.Message{{}}, 0)
	require.Error(t, err)
	_, err = d.WriteBatch([]rdmanet.Message{{Addr: to}}, 0)
	require.ErrorIs(t, err, net.ErrWriteToConnected)
	_, err = o.ReadBatch(in, 1)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = o.WriteBatch(out, 1)
	require.ErrorIs(t, err, syscall.EINVAL)
	n, err = o.ReadBatch(nil, 0)
	require.NoError(t, err)
	require.Zero(t, n)
}

// What nettest does with streams, as far as it makes sense for datagrams.
func TestPacketManners(t *testing.T) {
	pair := func(t *testing.T) (c1, c2 *rdmanet.PacketConn) {
		c2 = localPacket(t)
		return dialPacket(t, c2.LocalAddr()), c2
	}
	timeout := func(t *testing.T, err error) {
		t.Helper()
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	past := time.Unix(1, 0)
	b := make([]byte, 100)
	t.Run("PastTimeout", func(t *testing.T) {
		c1, c2 := pair(t)
		says(t, c2, c2.LocalAddr(), "there")
		require.NoError(t, c1.SetDeadline(past))
		require.NoError(t, c2.SetDeadline(past))
		_, err := c1.Write(b)
		timeout(t, err)
		_, err = c1.Read(b)
		timeout(t, err)
		_, _, err = c2.ReadFrom(b)
		timeout(t, err)
		require.NoError(t, c2.SetDeadline(time.Time{}))
		gets(t, c2, "there")
	})
	t.Run("PresentTimeout", func(t *testing.T) {
		c1, _ := pair(t)
		done := make(chan error)
		go func() {
			_, err := c1.Read(make([]byte, 1))
			done <- err
		}()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, c1.SetReadDeadline(past))
		timeout(t, <-done)
	})
	t.Run("FutureTimeout", func(t *testing.T) {
		c1, c2 := pair(t)
		require.NoError(t, c1.SetDeadline(time.Now().Add(30*time.Millisecond)))
		_, err := c1.Read(b)
		timeout(t, err)
		for err = nil; err == nil; { // its time may come a moment later
			_, err = c1.Write([]byte("early"))
		}
		timeout(t, err)
		require.NoError(t, c1.SetDeadline(time.Time{}))
		for err = nil; err == nil; {
			require.NoError(t, c2.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
			_, _, err = c2.ReadFrom(b)
		}
		says(t, c2, c2.LocalAddr(), "x")
		_, err = c1.Write([]byte("y"))
		require.NoError(t, err)
		gets(t, c2, "x")
		gets(t, c2, "y")
	})
	t.Run("Close", func(t *testing.T) {
		c1, c2 := pair(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				_, err := c1.Read(make([]byte, 1))
				assert.ErrorIs(t, err, net.ErrClosed)
				_, _, err = c2.ReadFrom(make([]byte, 1))
				assert.ErrorIs(t, err, net.ErrClosed)
			})
		}
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, c1.Close())
		require.NoError(t, c2.Close())
		within(t, soon, "readers", wg.Wait)
		for _, c := range []*rdmanet.PacketConn{c1, c2} {
			require.ErrorIs(t, c.Close(), net.ErrClosed)
			require.ErrorIs(t, c.SetDeadline(time.Now()), net.ErrClosed)
			require.ErrorIs(t, c.SetReadBuffer(1<<20), net.ErrClosed)
			require.ErrorIs(t, c.SetMulticastLoopback(true), net.ErrClosed)
			_, err := c.JoinGroup(t.Context(), nil, &rdmanet.Addr{IP: group1}, 0)
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, c.LeaveGroup(nil, &rdmanet.Addr{IP: group1}), net.ErrClosed)
			require.NotNil(t, c.LocalAddr())
		}
		_, err := c1.Write(b)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c2.WriteTo(b, c2.LocalAddr())
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c2.ReadBatch(make([]rdmanet.Message, 1), 0)
		require.ErrorIs(t, err, net.ErrClosed)
	})
	t.Run("ConcurrentMethods", func(t *testing.T) {
		c1, c2 := pair(t)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { c1.Read(make([]byte, 10)) })
			wg.Go(func() { c1.Write(make([]byte, 10)) })
			wg.Go(func() { c2.WriteTo(make([]byte, 10), c1.LocalAddr()) })
			wg.Go(func() { c1.SetDeadline(time.Now().Add(10 * time.Millisecond)) })
			wg.Go(func() { c1.SetReadBuffer(1 << (16 + rand.IntN(6))) })
			wg.Go(func() { c1.SetWriteBuffer(1 << (10 + rand.IntN(10))) })
			wg.Go(func() { _, _, _ = c1.LocalAddr(), c1.RemoteAddr(), c1.Stats() })
			wg.Go(func() { c1.SetMulticastLoopback(rand.IntN(2) == 0) })
		}
		wg.Wait()
	})
	t.Run("PingPong", func(t *testing.T) {
		c1, c2 := pair(t)
		go func() {
			b := make([]byte, 8)
			for {
				n, from, err := c2.ReadFrom(b)
				if err != nil {
					return
				}
				if _, err := c2.WriteTo(b[:n], from); err != nil {
					return
				}
			}
		}()
		require.NoError(t, c1.SetDeadline(time.Now().Add(20*time.Second)))
		for i := range 1000 {
			want := fmt.Sprint(i)
			_, err := c1.Write([]byte(want))
			require.NoError(t, err)
			n, err := c1.Read(b)
			require.NoError(t, err)
			require.Equal(t, want, string(b[:n]))
		}
	})
}

func TestPacketErrors(t *testing.T) {
	s := localPacket(t)
	b := []byte("x")
	var op *net.OpError
	var e *rdmanet.Error
	check := func(err, is error, o, hint string) {
		t.Helper()
		require.ErrorAs(t, err, &op)
		assert.Equal(t, o, op.Op)
		assert.Equal(t, "rdma-ud", op.Net)
		if is != nil {
			require.ErrorIs(t, err, is)
		}
		if hint != "" {
			require.ErrorAs(t, err, &e)
			assert.Contains(t, e.Hint, hint)
		}
	}
	_, err := s.Write(b)
	check(err, syscall.EDESTADDRREQ, "write", "dialed")
	_, err = s.WriteTo(b, nil)
	check(err, nil, "write", "")
	_, err = s.WriteTo(b, (*rdmanet.Addr)(nil))
	check(err, nil, "write", "")
	_, err = s.WriteTo(b, (*net.UDPAddr)(nil))
	check(err, nil, "write", "")
	_, err = s.WriteTo(b, &net.UnixAddr{Name: "x"})
	check(err, nil, "write", "")
	_, err = s.WriteTo(b, &rdmanet.Addr{IP: netip.MustParseAddr(local4)})
	check(err, syscall.EDESTADDRREQ, "write", "port")
	gone := localPacket(t)
	to := gone.LocalAddr()
	require.NoError(t, gone.Close())
	_, err = s.WriteTo(b, &rdmanet.Addr{IP: to.(*rdmanet.Addr).IP, Port: to.(*rdmanet.Addr).Port})
	check(err, syscall.ECONNREFUSED, "write", "ListenPacket")
	_, err = rdmanet.Dial("rdma-ud", to.String())
	check(err, syscall.ECONNREFUSED, "dial", "ListenPacket")
	_, err = rdmanet.ListenPacket("rdma-ud", s.LocalAddr().String())
	check(err, syscall.EADDRINUSE, "listen", "another port")
	_, err = rdmanet.ListenPacket("rdma-ud", "192.0.2.1:0")
	check(err, syscall.EADDRNOTAVAIL, "listen", "")
	_, err = rdmanet.ListenPacket("rdma-ud", "239.1.1.1:0")
	check(err, syscall.EADDRNOTAVAIL, "listen", "ListenMulticast")
	_, err = rdmanet.ListenPacket("rdma-ud", "no port")
	check(err, nil, "listen", "host:port")
	_, err = rdmanet.ListenPacket("sctp", ":0")
	require.ErrorAs(t, err, new(net.UnknownNetworkError))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = new(rdmanet.ListenConfig).ListenPacket(ctx, "rdma-ud", local4+":0")
	check(err, context.Canceled, "listen", "")
	_, err = new(rdmanet.Dialer).DialContext(ctx, "rdma-ud", s.LocalAddr().String())
	check(err, context.Canceled, "dial", "")
	_, err = (&rdmanet.ListenConfig{Device: "nix0"}).ListenPacket(context.Background(), "rdma-ud", local4+":0")
	check(err, rdmanet.ErrNoDevice, "listen", "Devices")
	_, err = (&rdmanet.Dialer{Device: "nix0"}).Dial("rdma-ud", s.LocalAddr().String())
	check(err, rdmanet.ErrNoDevice, "dial", "Devices")
	s4 := listenPacket(t, "rdma-ud4", ":0")
	_, err = s4.WriteTo(b, &rdmanet.Addr{IP: netip.MustParseAddr("::1"), Port: 1})
	require.ErrorAs(t, err, new(*net.AddrError))
	var none *rdmanet.PacketConn
	_, err = none.Read(b)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, new(rdmanet.PacketConn).Close(), syscall.EINVAL)
	require.Zero(t, none.MaxPayload())

	// Nobody answers, for as long as the dialer waits.
	hold := make(chan struct{})
	defer close(hold)
	lc := &rdmanet.ListenConfig{Admit: func(*rdmanet.Request) error { <-hold; return nil }}
	pc, err := lc.ListenPacket(context.Background(), "rdma-ud", local4+":0")
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	_, err = (&rdmanet.Dialer{Timeout: 50 * time.Millisecond}).Dial("rdma-ud", pc.LocalAddr().String())
	check(err, context.DeadlineExceeded, "dial", "firewalls")
	require.ErrorAs(t, err, &e)
	require.True(t, e.Timeout())
}

func TestPacketAdmit(t *testing.T) {
	var asked []*rdmanet.Request
	lc := &rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		asked = append(asked, r)
		return errors.New("no")
	}}
	pc, err := lc.ListenPacket(context.Background(), "rdma-ud", local4+":0")
	require.NoError(t, err)
	defer pc.Close()
	_, err = rdmanet.Dial("rdma-ud", pc.LocalAddr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.Contains(t, err.Error(), "does not want")
	require.Len(t, asked, 1)
	require.Equal(t, pc.LocalAddr().(*rdmanet.Addr).Port, asked[0].Local.Port)
}

// A datagram of steady state allocates nothing, nor does its sender's address.
func TestPacketAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector pools lose what they hold")
	}
	s := localPacket(t)
	d := dialPacket(t, s.LocalAddr())
	b := make([]byte, 200)
	in := []rdmanet.Message{{Buffers: [][]byte{make([]byte, 200)}}}
	out := []rdmanet.Message{{Buffers: [][]byte{b}}}
	var failed error
	check := func(_ int, err error) {
		if err != nil {
			failed = err
		}
	}
	exchange := func() {
		for range 50 {
			check(d.Write(b))
			_, from, err := s.ReadFrom(b)
			check(0, err)
			check(s.WriteTo(b, from))
			check(d.Read(b))
			check(d.WriteBatch(out, 0))
			check(s.ReadBatch(in, 0))
		}
	}
	require.NoError(t, s.SetDeadline(time.Now().Add(20*time.Second)))
	require.NoError(t, d.SetDeadline(time.Now().Add(20*time.Second)))
	best := testing.AllocsPerRun(1, exchange)
	for i := 0; i < 9 && best > 2; i++ {
		best = min(best, testing.AllocsPerRun(1, exchange))
	}
	require.NoError(t, failed)
	require.LessOrEqual(t, best, 2.0, "allocations for 150 datagrams")
}

func TestPacketBuffers(t *testing.T) {
	lc := &rdmanet.ListenConfig{ReadBuffer: 20 * 4096}
	pc, err := lc.ListenPacket(context.Background(), "rdma-ud", local4+":0")
	require.NoError(t, err)
	s := pc.(*rdmanet.PacketConn)
	defer s.Close()
	d := dialPacket(t, s.LocalAddr())
	room := 20 * 4096 / s.MaxPayload()
	for range room + 5 {
		_, err := d.Write([]byte("x"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return s.Stats().Dropped == 5 }, soon, time.Millisecond)
	for range room {
		gets(t, s, "x")
	}
	getsNothing(t, s)
	require.ErrorIs(t, s.SetReadBuffer(-1), syscall.EINVAL)
	require.ErrorIs(t, s.SetWriteBuffer(0), syscall.EINVAL)
	require.NoError(t, d.SetWriteBuffer(1))
	_, err = d.Write(bytes.Repeat([]byte("y"), s.MaxPayload()))
	require.NoError(t, err, "one is always possible")
}

func init() {
	roles["packet"] = packetRole
	roles["member"] = memberRole
}

// packetRole answers datagrams at the address in its first argument.
func packetRole() error {
	pc, err := rdmanet.ListenPacket("rdma-ud", os.Args[1])
	if err != nil {
		return err
	}
	go func() {
		untilStdinEnds()
		pc.Close()
	}()
	fmt.Println(pc.LocalAddr())
	b := make([]byte, 4096)
	for {
		n, from, err := pc.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			_, err = pc.WriteTo(b[:n], from)
		}
		if err != nil {
			return err
		}
	}
}

// asks sends until an echo comes.
func asks(t testing.TB, c net.Conn, limit time.Duration) (tries int) {
	t.Helper()
	b := make([]byte, 100)
	for end := time.Now().Add(limit); time.Now().Before(end); {
		tries++
		want := fmt.Sprint("try ", tries)
		_, err := c.Write([]byte(want))
		require.NoError(t, err)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		if n, err := c.Read(b); err == nil {
			require.Equal(t, want, string(b[:n]))
			return tries
		}
	}
	require.FailNow(t, "no answer")
	return 0
}

// Another process serves, is killed, and another one comes in its place.
func TestPacketProcesses(t *testing.T) {
	p := start(t, "packet", net.JoinHostPort(local4, "0"))
	c := dialPacket(t, addrOf(t, p.ready))
	qpn := c.RemoteAddr().(*rdmanet.Addr).UD.QPN
	for range 100 {
		asks(t, c, soon)
	}
	require.NoError(t, p.cmd.Process.Kill())
	<-p.ended
	p = start(t, "packet", p.ready)
	tries := asks(t, c, soon)
	require.NotEqual(t, qpn, c.RemoteAddr().(*rdmanet.Addr).UD.QPN)
	require.LessOrEqual(t, tries, 15, "a second, in tenths, and what there is beside")
	p.stop(t)
	require.Eventually(t, func() bool {
		_, err := c.Write([]byte("x"))
		return errors.Is(err, syscall.ECONNREFUSED)
	}, soon, 20*time.Millisecond)
}
