package rdmanet_test

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/internal/verbs/softroce/faulty"
	"github.com/go-rdma/rdma/rdmanet"
)

// withFaults is the only provider until the test ends. What is accepted has no faults.
func withFaults(t *testing.T) *faulty.Faults {
	f := new(faulty.Faults)
	t.Cleanup(cm.Replace(&cm.Manager{Providers: []verbs.Provider{faulty.Provider{Provider: softroce.Default(), Faults: f, DialsOnly: true}}}))
	return f
}

// Whatever step of connecting by RDMA fails, each time that it is taken, TCP serves, the cause is in the log
// and nothing is left behind. The connection of TCP is not touched by it.
func TestFallbackAtEachStep(t *testing.T) {
	f := withFaults(t)
	l, err := (&rdmanet.ListenConfig{Fallback: new(net.ListenConfig)}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	echoing(t, l)
	addr := l.Addr().String()
	d, _ := falling(t)
	overRDMA(t, d, addr) // the steps are those that are needed
	for step, errs := range map[string][]error{
		"resolve":           {syscall.ENETUNREACH, rdmanet.ErrNoDevice, syscall.EADDRNOTAVAIL},
		"open device":       {syscall.ENODEV, syscall.EACCES},
		"protection domain": {syscall.ENOMEM},
		"arena":             {syscall.ENOMEM},
		"register":          {syscall.ENOMEM, syscall.EPERM},
		"completion queue":  {syscall.EMFILE},
		"queue pair":        {syscall.ENOMEM},
		"post receives":     {syscall.EIO},
		"connect":           {syscall.ETIMEDOUT, syscall.ECONNRESET, &verbs.RejectError{Reason: 28}},
		"exchange":          {syscall.EPROTO},
	} {
		for _, injected := range errs {
			for n := 1; ; n++ {
				rdmanet.ForgetDetours()
				// Connections share a device, which is opened for the first one.
				require.Eventually(t, func() bool { devices, _, _ := rc.Usage(); return devices == 0 }, 20*time.Second, time.Millisecond)
				log := new(logLines)
				d.Logger = log.logger()
				f.Arm(step, n, fmt.Errorf("injected: %w", injected))
				before := fallbacks()
				c, err := d.Dial("rdma", addr)
				require.NoError(t, err, "%s %d", step, n)
				if !f.Hit() {
					require.Greater(t, n, 1, "%s is no step", step)
					require.IsType(t, (*rdmanet.Conn)(nil), c)
					works(t, c)
					break
				}
				require.IsType(t, (*net.TCPConn)(nil), c, "%s %d", step, n)
				works(t, c)
				assert.Equal(t, before+1, fallbacks())
				require.Len(t, log.all(), 1)
				if step != "exchange" {
					assert.Contains(t, log.all()[0], "injected", step)
				} else {
					assert.Contains(t, log.all()[0], "rsockets version 1")
				}
			}
		}
	}
	// RDMA is as good as before.
	rdmanet.ForgetDetours()
	f.Arm("", 0, nil)
	overRDMA(t, d, addr)
}

// A completion queue that fails while a connection is made, or just after, ends the dial by RDMA, so that TCP serves, or the
// connection: nothing hangs.
func TestFallbackCompletionQueueFails(t *testing.T) {
	f := withFaults(t)
	l, err := (&rdmanet.ListenConfig{Fallback: new(net.ListenConfig)}).Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	echoing(t, l)
	d, _ := falling(t)
	for _, step := range []string{"arm", "poll"} {
		for n := 1; n <= 4; n++ {
			rdmanet.ForgetDetours()
			f.Arm(step, n, syscall.EIO)
			c, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			if _, rdma := rdmanet.Unwrap(c); !rdma {
				assert.True(t, f.Hit())
				works(t, c)
				continue
			}
			require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
			within(t, 20*time.Second, "the end of the connection", func() {
				c.Write([]byte("x"))
				c.Read(make([]byte, 1))
				c.Close()
			})
			assert.True(t, f.Hit() || n > 1, "%s is no step", step)
		}
	}
}

// A number that TCP has and RDMA does not is not taken; another one is found.
func TestListenFallbackFindsPort(t *testing.T) {
	f := withFaults(t)
	lc := &rdmanet.ListenConfig{Fallback: new(net.ListenConfig)}
	f.Arm("listen", 1, syscall.EADDRINUSE)
	l, err := lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	assert.True(t, f.Hit())
	addr := l.Addr().String()
	require.NoError(t, l.Close())

	for _, errno := range []error{syscall.EADDRINUSE, syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		f.Arm("listen", 1, errno)
		l, err = lc.Listen(t.Context(), "rdma", addr)
		require.ErrorIs(t, err, errno, "a number that was asked for, and what is no matter of devices")
		require.True(t, noListener(l))
		tcp, err := net.Listen("tcp", addr)
		require.NoError(t, err, "TCP's is free again")
		require.NoError(t, tcp.Close())
	}
}
