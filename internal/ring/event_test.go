package ring

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestEvents: what the connection manager tells ends both directions with the
// error that says so, after what had arrived; the first cause holds.
func TestEvents(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for name, x := range map[string]struct {
		events []verbs.Event
		read   error
		write  error
	}{
		"device removed":    {[]verbs.Event{{Type: verbs.EventDeviceRemoval}}, syscall.ENODEV, syscall.ENODEV},
		"peer died":         {[]verbs.Event{{Type: verbs.EventDisconnected, Err: errors.New("gone")}}, syscall.ECONNRESET, syscall.ECONNRESET},
		"DREQ":              {[]verbs.Event{{Type: verbs.EventDisconnected}}, io.EOF, syscall.EPIPE},
		"died, then DREQ":   {[]verbs.Event{{Type: verbs.EventDisconnected, Err: errors.New("gone")}, {Type: verbs.EventDisconnected}}, syscall.ECONNRESET, syscall.ECONNRESET},
		"DREQ, then device": {[]verbs.Event{{Type: verbs.EventDisconnected}, {Type: verbs.EventDeviceRemoval}}, io.EOF, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := w.pair()
			write(t, c, []byte("before"))
			require.Eventually(t, func() bool { return s.Stats().BytesRead == 6 }, 5*time.Second, time.Millisecond)
			for _, ev := range x.events {
				(*handler)(s).HandleEvent(ev)
			}
			require.Equal(t, "before", string(readN(t, s, 6)))
			for range 2 {
				_, err := s.Read(make([]byte, 1))
				require.ErrorIs(t, err, x.read)
				_, err = s.Write(make([]byte, 1))
				require.ErrorIs(t, err, x.write)
			}
			(*handler)(s).HandleEvent(verbs.Event{Type: verbs.EventAddrChange}) // of no concern
			(*handler)(s).HandleEvent(verbs.Event{Type: 200})
			within(t, time.Second, "close", func() { require.NoError(t, s.Close()) })
		})
	}
}

// TestIdleGivesBack: after a burst, a connection that is idle keeps only what it
// has published.
func TestIdleGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 20 * time.Microsecond})
		c, s := w.pair()
		go func() {
			for range 8 {
				_, _ = c.Write(make([]byte, 1<<20))
			}
		}()
		_, err := io.ReadFull(struct{ io.Reader }{s}, make([]byte, 8<<20))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.LessOrEqual(t, c.Stats().WriteBuffer, 4<<10)
		busy := s.Stats().ReadBuffer
		require.GreaterOrEqual(t, busy, 512<<10, "it has grown")
		time.Sleep(time.Minute)
		require.LessOrEqual(t, s.Stats().ReadBuffer, 2*256<<10)
		write(t, c, []byte("and on"))
		require.Equal(t, "and on", string(readN(t, s, 6)))
	})
}
