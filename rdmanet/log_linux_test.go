package rdmanet

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What calls return is not logged beside it, nor what peers do: a log that peers write in is one that they can fill.
func TestFailuresAreNotLogged(t *testing.T) {
	byDefault, given := defaultLog(t), new(logLines)
	logger := given.logger()
	d := &Dialer{Logger: logger, Timeout: 10 * time.Second}
	no := &ListenConfig{Logger: logger, Admit: func(*Request) error { return assert.AnError }}
	nobody, err := no.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	defer nobody.Close()
	for _, network := range []string{"rdma", "rdma-ud"} {
		_, err = d.Dial(network, "127.0.0.1:1")
		require.ErrorIs(t, err, syscall.ECONNREFUSED, network)
	}
	_, err = d.Dial("rdma", nobody.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = (&Dialer{Logger: logger, Device: "nosuch"}).Dial("rdma", nobody.Addr().String())
	require.ErrorIs(t, err, ErrNoDevice)
	_, err = (&ListenConfig{Logger: logger}).Listen(t.Context(), "rdma", nobody.Addr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)

	l, err := (&ListenConfig{Logger: logger}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	reset := make(chan struct{})
	go func() {
		defer close(reset)
		c, err := l.Accept()
		if assert.NoError(t, err) {
			assert.NoError(t, c.(*Conn).SetLinger(0))
			assert.NoError(t, c.Close())
		}
	}()
	c, err := d.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.NotErrorIs(t, err, io.EOF)
	<-reset
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	assert.Empty(t, given.lines(t))
	assert.Empty(t, byDefault.lines(t))
}
