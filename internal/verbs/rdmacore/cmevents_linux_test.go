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
	id := &cmid{
		active: true, state: state, resolving: true, remote: netip.MustParseAddrPort("10.0.0.2:7"),
		step: make(chan cmEvent, 1), gone: make(chan struct{}),
	}
	if state == cmConnecting {
		id.begins(stepAnswer)
	}
	return id
}

// TestErrorEventsEndSteps: whatever error the connection manager tells of while an address or a route is resolved, and while a connection is
// made, ends what waits for it, with that error. Only a step that came too late is tried again, and not for ever.
func TestErrorEventsEndSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for name, c := range map[string]struct {
		step         uint32
		kind, status int
		want         error
		tried        int
	}{
		"address, no device":      {stepAddr, cmAddrError, -int(syscall.ENODEV), syscall.ENODEV, 1},
		"address, unreachable":    {stepAddr, cmAddrError, -int(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH, 1},
		"address, too late":       {stepAddr, cmAddrError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, tries},
		"address, without reason": {stepAddr, cmAddrError, 0, syscall.ETIMEDOUT, tries},
		"address, device removed": {stepAddr, cmRemoval, 0, syscall.ENODEV, 1},
		"route, invalid":          {stepRoute, cmRouteError, -int(syscall.EINVAL), syscall.EINVAL, 1},
		"route, too late":         {stepRoute, cmRouteError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, tries},
		"route, without reason":   {stepRoute, cmRouteError, 0, syscall.ETIMEDOUT, tries},
		"route, device removed":   {stepRoute, cmRemoval, 0, syscall.ENODEV, 1},
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

// TestEventsOfOtherSteps: what is told of another step neither ends one nor takes the place of what does.
func TestEventsOfOtherSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	all := []int{cmAddrResolved, cmAddrError, cmRouteResolved, cmRouteError, cmResponse, cmEstablished, cmConnectError, cmUnreachable, cmRejected}
	for step, kinds := range map[uint32][2]int{stepAddr: {cmAddrResolved, cmAddrError}, stepRoute: {cmRouteResolved, cmRouteError}} {
		for _, kind := range all {
			if kind == kinds[0] || kind == kinds[1] {
				continue
			}
			id, tried := newTestCMID(cmFresh), 0
			id.onCM(&cmEvent{kind: kind}) // before
			err := id.take(ctx, step, func(int) error {
				tried++
				id.onCM(&cmEvent{kind: kind}) // and meanwhile
				id.onCM(&cmEvent{kind: kinds[1], status: -int(syscall.EHOSTUNREACH)})
				return nil
			})
			require.ErrorIs(t, err, syscall.EHOSTUNREACH, "step %b, event %d", step, kind)
			require.Equal(t, 1, tried)
			err = id.take(ctx, step, func(int) error {
				id.onCM(&cmEvent{kind: kind})
				id.onCM(&cmEvent{kind: kinds[0]})
				return nil
			})
			require.NoError(t, err, "step %b, event %d", step, kind)
		}
	}
	for _, kind := range []int{cmAddrResolved, cmAddrError, cmRouteResolved, cmRouteError} {
		id := newTestCMID(cmConnecting)
		id.onCM(&cmEvent{kind: kind})
		id.onCM(&cmEvent{kind: cmResponse})
		require.Equal(t, cmResponse, (<-id.step).kind)
	}
}
