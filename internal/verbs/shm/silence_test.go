//go:build linux

package shm

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/verbs"
)

// impatientFor makes a provider that is sooner at the end of its patience.
func impatientFor(handshake, answer time.Duration) *Provider {
	p := New()
	p.patience = patience{handshake, answer}
	return p
}

// holder starts a process that listens and lets requests wait.
func holder(t *testing.T) (cmd *exec.Cmd, at netip.AddrPort) {
	cmd, said := start(t, "hold")
	s, ok := strings.CutPrefix(said(), "listening at ")
	require.True(t, ok)
	return cmd, netip.MustParseAddrPort(s)
}

// resolved is what is there for a connection before it is asked for.
func resolved(t *testing.T, p *Provider, to netip.AddrPort) *side {
	id, err := p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to})
	require.NoError(t, err)
	s, err := newSide(id)
	require.NoError(t, err)
	return s
}

// requireSilent checks how a dial without a deadline ends whose peer is stopped.
func requireSilent(t *testing.T, begin time.Time, patience time.Duration, err error) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.ErrorContains(t, err, "does not answer")
	require.GreaterOrEqual(t, time.Since(begin), patience)
	require.Less(t, time.Since(begin), 2*patience+5*time.Second)
}

// TestStoppedBeforeConnect: the process is stopped once it has introduced itself. The dial ends all the same.
func TestStoppedBeforeConnect(t *testing.T) {
	_, fds := held(t)
	patience := 100 * time.Millisecond
	if long() {
		patience = peerPatience
	}
	cmd, to := holder(t)
	s := resolved(t, impatientFor(time.Minute, patience), to)
	stop(t, cmd)
	begin := time.Now()
	_, err := s.id.Connect(context.Background(), &sideParam)
	requireSilent(t, begin, patience, err)
	_, err = s.close()
	require.NoError(t, err)
	kill(t, cmd)
	requireNothingHeld(t, fds)
}

// TestStoppedBeforeAnswer: the process has the request, and says for a time that it runs. It is stopped before it answers.
func TestStoppedBeforeAnswer(t *testing.T) {
	_, fds := held(t)
	const patience = 500 * time.Millisecond
	cmd, to := holder(t)
	s := resolved(t, impatientFor(time.Minute, patience), to)
	done := make(chan error, 1)
	go func() {
		_, err := s.id.Connect(context.Background(), &sideParam)
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err, "the process runs")
		require.Fail(t, "nobody has accepted")
	case <-time.After(3 * patience):
	}
	begin := time.Now()
	stop(t, cmd)
	requireSilent(t, begin, 0, <-done)
	_, err := s.close()
	require.NoError(t, err)
	kill(t, cmd)
	requireNothingHeld(t, fds)
}

// TestStoppedBeforeHandshake: nor is one waited for that is stopped from the beginning, also where nothing more can come to its port.
func TestStoppedBeforeHandshake(t *testing.T) {
	_, fds := held(t)
	const patience = 100 * time.Millisecond
	p := impatientFor(patience, time.Minute)
	fd, to := silentName(t) // which takes nobody, as one that is stopped
	begin := time.Now()
	_, err := dialTo(context.Background(), p, to)
	requireSilent(t, begin, patience, err)
	var crowd []int
	for {
		c, _, err := dialName(portKey{verbs.PSTCP, to.Port()})
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		require.NoError(t, err)
		crowd = append(crowd, c)
	}
	begin = time.Now()
	_, err = dialTo(context.Background(), p, to)
	requireSilent(t, begin, patience, err)
	for _, c := range append(crowd, fd) {
		require.NoError(t, closeFd(c))
	}
	requireNothingHeld(t, fds)
}

// TestSlowAccept: a process that runs may take its time.
func TestSlowAccept(t *testing.T) {
	_, fds := held(t)
	const patience = 500 * time.Millisecond
	p, other := impatientFor(time.Minute, patience), New()
	l, err := listenAt(other)
	require.NoError(t, err)
	s := resolved(t, p, l.Addr())
	done := make(chan error, 1)
	go func() {
		_, err := s.id.Connect(context.Background(), &sideParam)
		done <- err
	}()
	time.Sleep(3 * patience)
	peer, err := acceptFrom(context.Background(), l)
	require.NoError(t, err)
	require.NoError(t, <-done)
	ping(t, s, peer)
	for _, s := range []*side{s, peer} {
		_, err := s.close()
		require.NoError(t, err)
	}
	require.NoError(t, l.Close())
	requireNothingHeld(t, fds)
}
