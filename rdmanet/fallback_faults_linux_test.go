package rdmanet_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
	"github.com/go-rdma/rdma/rdmanet"
)

// faults makes one step of connecting fail: the nth time that it is taken.
type faults struct {
	mu    sync.Mutex
	step  string
	n     int
	err   error
	fired bool
}

func (f *faults) arm(step string, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step, f.n, f.err, f.fired = step, n, err, false
}

func (f *faults) hit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

func (f *faults) at(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if step != f.step {
		return nil
	}
	if f.n--; f.n != 0 {
		return nil
	}
	f.fired = true
	return f.err
}

// faulty is softroce, but that what dials goes through faults. What listens does not, but for the port itself.
type faulty struct {
	*softroce.Provider
	*faults
}

// withFaults is the only provider until the test ends.
func withFaults(t *testing.T) *faults {
	f := new(faults)
	t.Cleanup(cm.Replace(&cm.Manager{Providers: []verbs.Provider{faulty{softroce.Default(), f}}}))
	return f
}

func (p faulty) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	if err := p.at("resolve"); err != nil {
		return nil, err
	}
	id, err := p.Provider.Resolve(ctx, attr)
	if err != nil {
		return nil, err
	}
	return faultyID{id, p.faults}, nil
}

func (p faulty) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	if err := p.at("listen"); err != nil {
		return nil, err
	}
	return p.Provider.Listen(ctx, attr)
}

type faultyID struct {
	verbs.CMID
	*faults
}

func (i faultyID) Device() verbs.Device { return faultyDevice{i.CMID.Device(), i.faults} }

func (i faultyID) CreateQP(pd verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	if err := i.at("create queue pair"); err != nil {
		return nil, err
	}
	a := *attr
	a.SendCQ, a.RecvCQ = a.SendCQ.(faultyCQ).CQ, a.RecvCQ.(faultyCQ).CQ
	qp, err := i.CMID.CreateQP(pd.(faultyPD).PD, &a)
	if err != nil {
		return nil, err
	}
	return faultyQP{qp, i.faults}, nil
}

func (i faultyID) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	if err := i.at("connect"); err != nil {
		return nil, err
	}
	rep, err := i.CMID.Connect(ctx, p)
	if err == nil && i.at("exchange") != nil {
		odd := *rep
		odd.PrivateData = []byte{7}
		return &odd, nil
	}
	return rep, err
}

// faultyDevice is a value, as rc asks of devices: the same for the same device.
type faultyDevice struct {
	verbs.Device
	*faults
}

func (d faultyDevice) Dup() (verbs.Device, error) {
	if err := d.at("open device"); err != nil {
		return nil, err
	}
	dev, err := d.Device.Dup()
	return faultyDevice{dev, d.faults}, err
}

func (d faultyDevice) AllocPD() (verbs.PD, error) {
	if err := d.at("protection domain"); err != nil {
		return nil, err
	}
	pd, err := d.Device.AllocPD()
	return faultyPD{pd, d.faults}, err
}

func (d faultyDevice) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) {
	if err := d.at("completion queue"); err != nil {
		return nil, err
	}
	cq, err := d.Device.CreateCQ(attr)
	return faultyCQ{cq, d.faults}, err
}

type faultyPD struct {
	verbs.PD
	*faults
}

func (p faultyPD) NewArena(size int) (verbs.Arena, error) {
	if err := p.at("arena"); err != nil {
		return nil, err
	}
	return p.PD.NewArena(size)
}

func (p faultyPD) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.at("register"); err != nil {
		return nil, err
	}
	return p.PD.RegMR(mem, access)
}

type faultyCQ struct {
	verbs.CQ
	*faults
}

func (q faultyCQ) Arm() error {
	if err := q.at("arm"); err != nil {
		return err
	}
	return q.CQ.Arm()
}

func (q faultyCQ) Poll(wc []verbs.WC) (int, error) {
	if err := q.at("poll"); err != nil {
		return 0, err
	}
	return q.CQ.Poll(wc)
}

type faultyQP struct {
	verbs.QP
	*faults
}

func (q faultyQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.at("post receives"); err != nil {
		return 0, err
	}
	return q.QP.PostRecv(wrs)
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
		"create queue pair": {syscall.ENOMEM},
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
				f.arm(step, n, fmt.Errorf("injected: %w", injected))
				before := fallbacks()
				c, err := d.Dial("rdma", addr)
				require.NoError(t, err, "%s %d", step, n)
				if !f.hit() {
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
	f.arm("", 0, nil)
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
			f.arm(step, n, syscall.EIO)
			c, err := d.Dial("rdma", l.Addr().String())
			require.NoError(t, err)
			if _, rdma := rdmanet.Unwrap(c); !rdma {
				assert.True(t, f.hit())
				works(t, c)
				continue
			}
			require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
			within(t, 20*time.Second, "the end of the connection", func() {
				c.Write([]byte("x"))
				c.Read(make([]byte, 1))
				c.Close()
			})
			assert.True(t, f.hit() || n > 1, "%s is no step", step)
		}
	}
}

// A number that TCP has and RDMA does not is not taken; another one is found.
func TestListenFallbackFindsPort(t *testing.T) {
	f := withFaults(t)
	lc := &rdmanet.ListenConfig{Fallback: new(net.ListenConfig)}
	f.arm("listen", 1, syscall.EADDRINUSE)
	l, err := lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	assert.True(t, f.hit())
	addr := l.Addr().String()
	require.NoError(t, l.Close())

	for _, errno := range []error{syscall.EADDRINUSE, syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		f.arm("listen", 1, errno)
		l, err = lc.Listen(t.Context(), "rdma", addr)
		require.ErrorIs(t, err, errno, "a number that was asked for, and what is no matter of devices")
		require.True(t, noListener(l))
		tcp, err := net.Listen("tcp", addr)
		require.NoError(t, err, "TCP's is free again")
		require.NoError(t, tcp.Close())
	}
}
