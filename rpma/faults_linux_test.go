package rpma_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/go-rdma/rdma/rpma"
)

// everything makes one of each, uses it and closes it. What fails it returns, whatever could be made before is closed.
func everything(ctx context.Context, t *testing.T) (err error) {
	failed := func(e error) bool {
		err = errors.Join(err, e)
		return e != nil
	}
	d, e := rpma.LookupLocal(local)
	require.NoError(t, e)
	p, e := rpma.NewPeer(d)
	if failed(e) {
		return err
	}
	defer func() { failed(p.Close()) }()
	var ms [3]*rpma.MR
	for i, n := range []int{4096, 2 << 20, 0} {
		if n > 0 {
			ms[i], e = p.Alloc(n, 0xff&^rpma.FlushPersistent)
		} else {
			ms[i], e = p.Register(mmap(t, 4096), 0xff)
		}
		if failed(e) {
			return err
		}
		defer func() { failed(ms[i].Close()) }()
	}
	srq, e := p.NewSRQ(nil)
	if failed(e) {
		return err
	}
	defer func() { failed(srq.Close()) }()
	ep, e := p.Listen(localAny)
	if failed(e) {
		return err
	}
	defer func() { failed(ep.Close()) }()
	type result struct {
		c   *rpma.Conn
		err error
	}
	accepted := make(chan result, 1)
	asks, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		r, err := ep.Accept(asks, &rpma.ConnConfig{SRQ: srq})
		if err != nil {
			cancel() // nobody else takes the request
			accepted <- result{nil, err}
			return
		}
		c, err := r.Connect(ctx, nil)
		accepted <- result{c, err}
	}()
	c, e := p.Dial(asks, ep.Addr().String(), &rpma.ConnConfig{Native: rpma.NativeNever, RCQSize: 4})
	if failed(e) {
		cancel()
	}
	s := <-accepted
	for _, end := range []*rpma.Conn{c, s.c} {
		if end != nil {
			defer func() {
				if err != nil {
					failed(end.Err()) // of the two ends the one that failed tells why
				}
				failed(end.Close())
			}()
		}
	}
	if failed(s.err) || err != nil {
		return err
	}
	if failed(srq.PostRecv(ms[1].Slice(0, 100), 1)) || failed(c.PostRecv(ms[2].Slice(0, 10), 2)) {
		return err
	}
	far := remote(t, ms[2])
	if failed(c.Do(ctx, rpma.Write(far.Slice(0, 100), ms[0].Slice(0, 100)), rpma.Flush(far.Slice(0, 8), rpma.Visibility),
		rpma.AtomicWrite(far.Slice(8, 8), [8]byte{1}), rpma.Read(ms[0].Slice(0, 10), far.Slice(0, 10)), rpma.Send(ms[0].Slice(0, 5)))) {
		return err
	}
	if failed(srq.CQ().Wait(ctx)) || failed(s.c.Do(ctx, rpma.Send(ms[0].Slice(0, 5)))) {
		return err
	}
	failed(c.RecvCQ().Wait(ctx))
	return err
}

// TestFaults: whatever call of the device's fails, each time that it is made, the program is told, with librpma's code and the cause,
// the calls behind it come to an end, and all that was made can be closed and is gone then.
func TestFaults(t *testing.T) {
	if local != "127.0.0.1" || onShm {
		t.Skip("the faults are those of the embedded device")
	}
	f := new(faulty.Faults)
	defer cm.Replace(&cm.Manager{Providers: []verbs.Provider{faulty.Provider{Provider: softroce.Default(), Faults: f}}})()
	for _, x := range []struct {
		step  string
		err   syscall.Errno
		code  rpma.Code
		quiet bool // what it is for does without, now and then
	}{
		{"open device", syscall.EACCES, rpma.ErrProvider, false},
		{"protection domain", syscall.ENOMEM, rpma.ErrNoMemory, false},
		{"protection domain", syscall.EIO, rpma.ErrProvider, false},
		{"arena", syscall.ENOMEM, rpma.ErrNoMemory, false},
		{"register", syscall.ENOMEM, rpma.ErrNoMemory, false},
		{"register", syscall.EOPNOTSUPP, rpma.ErrNotSupported, false},
		{"completion queue", syscall.EMFILE, rpma.ErrProvider, false},
		{"shared receive queue", syscall.ENOMEM, rpma.ErrNoMemory, false},
		{"resolve", syscall.ENETUNREACH, rpma.ErrProvider, false},
		{"listen", syscall.EADDRNOTAVAIL, rpma.ErrProvider, false},
		{"request", syscall.EIO, rpma.ErrProvider, false},
		{"queue pair", syscall.ENOMEM, rpma.ErrNoMemory, false},
		{"connect", syscall.ETIMEDOUT, rpma.ErrProvider, false},
		{"accept", syscall.ECONNABORTED, rpma.ErrProvider, false},
		{"post receives", syscall.EIO, rpma.ErrProvider, false},
		{"post shared receives", syscall.EIO, rpma.ErrProvider, false},
		{"post sends", syscall.EIO, rpma.ErrProvider, false},
		{"arm", syscall.EIO, rpma.ErrProvider, true},
		{"poll", syscall.EIO, rpma.ErrProvider, true},
		{"deregister", syscall.EIO, rpma.ErrProvider, false},
		{"close listener", syscall.EIO, rpma.ErrProvider, false},
		{"close identifier", syscall.EIO, rpma.ErrProvider, false},
		{"close completion queue", syscall.EIO, rpma.ErrProvider, false},
		{"close shared queue", syscall.EIO, rpma.ErrProvider, false},
		{"close domain", syscall.EIO, rpma.ErrProvider, false},
		{"close device", syscall.EIO, rpma.ErrProvider, false},
	} {
		for n := 1; ; n++ {
			name := fmt.Sprintf("%s %d: %v", x.step, n, x.err)
			before, _, _ := rc.Usage()
			f.Arm(x.step, n, fmt.Errorf("injected: %w", x.err))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := everything(ctx, t)
			assert.NoError(t, ctx.Err(), "%s: something waited", name)
			cancel()
			after, _, _ := rc.Usage()
			require.Equal(t, before, after, "%s: left open", name)
			if !f.Hit() {
				require.Greater(t, n, 1, "%s is no call", x.step)
				require.NoError(t, err, name)
				break
			}
			if err != nil || !x.quiet {
				require.ErrorIs(t, err, x.err, name)
				require.ErrorIs(t, err, x.code, name)
				require.ErrorContains(t, err, "injected", name)
				var re *rpma.Error
				require.ErrorAs(t, err, &re, name)
			}
			if x.quiet && n == 20 {
				break // as often as it is done there is no end of these
			}
		}
	}
	f.Arm("", 0, nil)
	require.NoError(t, everything(t.Context(), t), "as good as before")
}

// TestAdviceErrors: what a device says of advice is one of librpma's codes.
func TestAdviceErrors(t *testing.T) {
	if local != "127.0.0.1" || onShm {
		t.Skip("the faults are those of the embedded device")
	}
	f := new(faulty.Faults)
	defer cm.Replace(&cm.Manager{Providers: []verbs.Provider{faulty.Provider{Provider: softroce.Default(), Faults: f}}})()
	m := alloc(t, newPeer(t), 100, rpma.ReadSrc)
	for errno, code := range map[syscall.Errno]rpma.Code{
		syscall.EOPNOTSUPP: rpma.ErrNotSupported, syscall.EFAULT: rpma.ErrInvalid, syscall.EINVAL: rpma.ErrInvalid, syscall.EIO: rpma.ErrProvider,
	} {
		f.Arm("advise", 1, fmt.Errorf("injected: %w", errno))
		err := m.Advise(0, 100, rpma.AdvicePrefetchWrite)
		require.ErrorIs(t, err, code)
		require.ErrorIs(t, err, errno)
		require.NoError(t, m.Advise(0, 100, rpma.AdvicePrefetchWrite))
	}
}
