package rdmanet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/cm"
	"github.com/go-rdma/rdma/internal/verbs"
)

func TestErrorKinds(t *testing.T) {
	for _, c := range []struct {
		err                error
		is                 error
		timeout, temporary bool
	}{
		{syscall.EMFILE, syscall.EMFILE, false, true},
		{fmt.Errorf("arena: %w", syscall.ENOMEM), syscall.ENOMEM, false, true},
		{os.NewSyscallError("socket", syscall.ENFILE), syscall.ENFILE, false, true},
		{syscall.ETIMEDOUT, syscall.ETIMEDOUT, true, false},
		{syscall.ECONNRESET, syscall.ECONNRESET, false, false},
		{&RejectError{Reason: 8}, syscall.ECONNREFUSED, false, false},
		{context.DeadlineExceeded, context.DeadlineExceeded, true, false},
		{context.Canceled, context.Canceled, false, false},
		{ErrNoDevice, ErrNoDevice, false, false},
		{&cm.NoDeviceError{Tried: []cm.Cause{{Name: "x", Err: syscall.ETIMEDOUT}}}, ErrNoDevice, false, false},
		{&net.DNSError{IsTimeout: true, IsTemporary: true}, nil, true, true},
		{ErrProtocol, ErrProtocol, false, false},
	} {
		err := opError("dial", "rdma", nil, nil, PhaseConnect, c.err)
		if c.is != nil {
			assert.ErrorIs(t, err, c.is)
		}
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		assert.Equal(t, c.timeout, ne.Timeout(), "%v", c.err)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		assert.Equal(t, c.temporary, op.Temporary(), "%v", c.err)
		require.IsType(t, (*Error)(nil), op.Err, "OpError asks only its direct child")
	}
}

// What was closed or came too late looks as package net has it: no *Error between.
func TestErrorsOfPackageNet(t *testing.T) {
	for _, want := range []error{net.ErrClosed, os.ErrDeadlineExceeded} {
		var op *net.OpError
		require.ErrorAs(t, opError("read", "rdma", nil, nil, PhaseTransfer, fmt.Errorf("ring: %w", want)), &op)
		assert.Equal(t, want, op.Err)
	}
	assert.NoError(t, opError("read", "rdma", nil, nil, PhaseTransfer, nil))
}

func TestErrorText(t *testing.T) {
	remote := AddrFromAddrPort(netip.MustParseAddrPort("10.1.2.3:80"))
	for want, e := range map[string]struct {
		phase Phase
		err   error
	}{
		"dial rdma 10.1.2.3:80: connection refused: nobody listens on the port (reason 8); start a server there with rdmanet.Listen or rsockets; TCP's ports are others than RDMA's": {PhaseConnect, &RejectError{Reason: 8}},
		"dial rdma 10.1.2.3:80: softroce0: network is unreachable; see: ip route get 10.1.2.3":                                                                                       {PhaseRoute, &cm.ProviderError{Provider: "softroce", Device: "softroce0", Err: syscall.ENETUNREACH}},
		"dial rdma 10.1.2.3:80: connection reset by peer":                                                                                                                            {PhaseTransfer, syscall.ECONNRESET},
		"dial rdma 10.1.2.3:80: too many open files; raise the limit of open files (ulimit -n)":                                                                                      {PhaseConnect, syscall.EMFILE},
	} {
		assert.EqualError(t, opError("dial", "rdma", nil, remote, e.phase, e.err), want)
	}
}

func TestErrorPhases(t *testing.T) {
	for want, err := range map[Phase]error{
		PhaseDevice:   fmt.Errorf("x: %w", verbs.ErrNoDevice),
		PhaseExchange: fmt.Errorf("x: %w", ErrProtocol),
		PhaseConnect:  syscall.ETIMEDOUT,
	} {
		var e *Error
		require.True(t, errors.As(opError("dial", "rdma", nil, nil, PhaseConnect, err), &e))
		assert.Equal(t, want, e.Phase)
	}
	e := newError(PhaseRoute, &cm.DeviceListError{List: "a,", Have: []string{"softroce", "softroce0"}}, nil)
	assert.Equal(t, PhaseDevice, e.Phase)
	assert.Contains(t, e.Hint, "softroce, softroce0")
}

func TestLinkLocalHint(t *testing.T) {
	e := newError(PhaseRoute, syscall.EINVAL, AddrFromAddrPort(netip.MustParseAddrPort("[fe80::1]:80")))
	assert.Contains(t, e.Hint, "[fe80::1%eth0]:port")
}

// Every kind of failure that a user can do something about has a hint, of one line.
func TestHints(t *testing.T) {
	for _, c := range []struct {
		phase Phase
		err   error
		hint  string
	}{
		{PhaseResolve, &net.AddrError{Err: "missing port in address", Addr: "x"}, "host:port"},
		{PhaseResolve, net.UnknownNetworkError("x"), `"rdma6"`},
		{PhaseResolve, fmt.Errorf("x: %w", errors.ErrUnsupported), "stream network"},
		{PhaseRoute, syscall.EADDRINUSE, "another port"},
		{PhaseRoute, syscall.EADDRNOTAVAIL, "rdmanet.Devices"},
		{PhaseRoute, syscall.EHOSTUNREACH, "ip route get 10.1.2.3"},
		{PhaseRoute, syscall.EMSGSIZE, "352 bytes"},
		{PhaseTransfer, syscall.EMSGSIZE, "connect again"},
		{PhaseConnect, &RejectError{Reason: 8}, "rdmanet.Listen"},
		{PhaseConnect, &RejectError{Reason: 28}, "Admit"},
		{PhaseConnect, &RejectError{Reason: 28}, "listens at this address"},
		{PhaseConnect, &RejectError{Reason: 26}, "smaller MTU"},
		{PhaseConnect, syscall.ETIMEDOUT, "4791"},
		{PhaseConnect, context.DeadlineExceeded, "4791"},
		{PhaseConnect, syscall.ENOMEM, "ulimit -l"},
		{PhaseConnect, syscall.ENFILE, "fs.file-max"},
		{PhaseConnect, ErrProtocol, "rsockets version 1"},
		{PhaseTransfer, syscall.ETIMEDOUT, "gone"},
		{PhaseRoute, &cm.NoDeviceError{Tried: []cm.Cause{{Name: "x", Err: &cm.UnknownDeviceError{Name: "x"}}}}, "rdmanet.Devices"},
		{PhaseRoute, &cm.NoDeviceError{Tried: []cm.Cause{{Name: "x", Err: &cm.UnaskedError{}}}}, "RDMANET_DEVICE=softroce"},
		{PhaseRoute, &cm.NoDeviceError{Tried: []cm.Cause{{Name: "softroce", Err: syscall.EADDRINUSE}}}, "ss -lunp"},
		{PhaseRoute, &cm.NoDeviceError{Listed: true}, "leave Device"},
		{PhaseRoute, &cm.NoDeviceError{}, "rdmanet.Devices"},
		{PhaseRoute, ErrNoDevice, "rdmanet.Devices"},
	} {
		e := newError(c.phase, c.err, AddrFromAddrPort(netip.MustParseAddrPort("10.1.2.3:80")))
		assert.Contains(t, e.Hint, c.hint, "%v", c.err)
		assert.NotContains(t, e.Hint, "\n")
		assert.Contains(t, e.Error(), e.Hint)
	}
}
