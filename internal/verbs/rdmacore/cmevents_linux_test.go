//go:build cgo

package rdmacore

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// newTestCMID is the active end of a connection on a device that is not there, without C's identifier.
func newTestCMID(state cmState) *cmid {
	return &cmid{
		active: true, state: state, resolving: true, remote: netip.MustParseAddrPort("10.0.0.2:7"),
		step: make(chan cmEvent, 1), gone: make(chan struct{}),
	}
}

// TestErrorEventsEndSteps: whatever error the connection manager tells of while an address or a route is resolved, and while a connection is
// made, ends what waits for it, with that error. Only a step that came too late is tried again, and not for ever.
func TestErrorEventsEndSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		step, kind, status int
		want               error
		tried              int
	}{
		"address, no device":      {cmAddrResolved, cmAddrError, -int(syscall.ENODEV), syscall.ENODEV, 1},
		"address, unreachable":    {cmAddrResolved, cmAddrError, -int(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH, 1},
		"address, too late":       {cmAddrResolved, cmAddrError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, tries},
		"address, without reason": {cmAddrResolved, cmAddrError, 0, syscall.ETIMEDOUT, tries},
		"address, device removed": {cmAddrResolved, cmRemoval, 0, syscall.ENODEV, 1},
		"route, invalid":          {cmRouteResolved, cmRouteError, -int(syscall.EINVAL), syscall.EINVAL, 1},
		"route, too late":         {cmRouteResolved, cmRouteError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, tries},
		"route, without reason":   {cmRouteResolved, cmRouteError, 0, syscall.ETIMEDOUT, tries},
		"route, device removed":   {cmRouteResolved, cmRemoval, 0, syscall.ENODEV, 1},
	} {
		id, tried, last := newTestCMID(cmFresh), 0, 0
		err := id.take(ctx, c.step, func(ms int) error {
			tried++
			require.Greater(t, ms, last, "patience grows")
			last = ms
			id.onCM(&cmEvent{kind: c.kind, status: c.status})
			return nil
		})
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, c.tried, tried, name)
	}

	for name, c := range map[string]struct {
		kind, status int
		want         error
	}{
		"error":          {cmConnectError, -int(syscall.ENOMEM), syscall.ENOMEM},
		"unreachable":    {cmUnreachable, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		"without reason": {cmUnreachable, 0, syscall.ETIMEDOUT},
		"rejected":       {cmRejected, 8, syscall.ECONNREFUSED},
		"removal":        {cmRemoval, 0, syscall.ENODEV},
	} {
		id := newTestCMID(cmConnecting)
		id.onCM(&cmEvent{kind: c.kind, status: c.status, param: verbs.ConnParam{PrivateData: []byte("why")}})
		select {
		case ev := <-id.step:
			err := refusal(&ev)
			require.ErrorIs(t, err, c.want, name)
			var rej *verbs.RejectError
			if errors.As(err, &rej) {
				require.Equal(t, 8, rej.Reason)
				require.Equal(t, "why", string(rej.PrivateData))
			}
		default:
			require.Fail(t, "Connect is not told", name)
		}
	}
}
