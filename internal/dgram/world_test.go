package dgram

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

func TestMain(m *testing.M) {
	testnet.Main()
	leak.Start()
	goleak.VerifyTestMain(m, goleak.Cleanup(leak.Exit))
}

// shown is what the tests intern addresses as.
type shown struct{ Addr }

func (shown) Network() string { return "test" }
func (shown) String() string  { return "" }

// world is a device on this host's loopback interface, and its sockets.
type world struct {
	t    testing.TB
	p    *softroce.Provider
	addr netip.Addr
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t, softroce.New(&softroce.Config{}), netip.MustParseAddr("127.0.0.1")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, w.p.Drain(ctx))
		devices, arenas, bytes := rc.Usage()
		require.Zero(t, devices, "devices")
		require.Zero(t, arenas, "arenas")
		require.Zero(t, bytes, "registered bytes")
	})
	return w
}

func (w *world) resolve(ctx context.Context, _ string, attr verbs.CMIDAttr) (verbs.CMID, error) {
	return w.p.Resolve(ctx, &attr)
}

func (w *world) config() *Config {
	return &Config{Resolve: w.resolve, Local: w.addr, Intern: func(a Addr) net.Addr { return &shown{a} }}
}

// socket makes a socket on the loopback address until the test ends.
func (w *world) socket(change ...func(*Config)) *Socket {
	w.t.Helper()
	cfg := w.config()
	for _, f := range change {
		f(cfg)
	}
	s := New(cfg)
	w.t.Cleanup(func() { _ = s.Close() })
	require.NoError(w.t, s.Open(w.t.Context(), ""))
	return s
}

// serve makes a socket that is found at a port.
func (w *world) serve(port uint16, change ...func(*Config)) (*Socket, Addr) {
	w.t.Helper()
	s := w.socket(change...)
	l, err := w.p.Listen(w.t.Context(), &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(w.addr, port), Backlog: 64})
	require.NoError(w.t, err)
	require.NoError(w.t, s.Serve(l))
	return s, Addr{IP: w.addr, Port: l.Addr().Port()}
}

func write(s *Socket, to Addr, b string) error {
	n, err := s.Write([]Out{{Buffers: [][]byte{[]byte(b)}, To: to}})
	if err == nil && n != 1 {
		return os.ErrInvalid
	}
	return err
}

type received struct {
	text string
	from Addr
	imm  uint32
	has  bool
}

func read(s *Socket) (received, error) {
	for {
		err := s.BeginRead()
		d, ok := Datagram{}, false
		if err == nil {
			d, ok = s.Next()
		}
		var r received
		if ok {
			r = received{text: string(d.Payload), imm: d.Imm, has: d.HasImm}
			r.from = d.From.(*shown).Addr
		}
		s.EndRead()
		if ok || err != nil {
			return r, err
		}
	}
}

// hears reads one datagram in time.
func (w *world) hears(s *Socket, want string) Addr {
	w.t.Helper()
	require.NoError(w.t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
	r, err := read(s)
	require.NoError(w.t, err)
	require.Equal(w.t, want, r.text)
	require.NoError(w.t, s.SetReadDeadline(time.Time{}))
	return r.from
}

// quiet finds that nothing has come.
func (w *world) quiet(s *Socket) {
	w.t.Helper()
	require.NoError(w.t, s.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	r, err := read(s)
	require.ErrorIs(w.t, err, os.ErrDeadlineExceeded, "%+v", r)
	require.NoError(w.t, s.SetReadDeadline(time.Time{}))
}
