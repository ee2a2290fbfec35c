package rdmanet_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// pipe connects a dialer and a listener.
func pipe(dial func(addr string) (net.Conn, error), l net.Listener) (c1, c2 net.Conn, stop func(), err error) {
	type result struct {
		c   net.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		accepted <- result{c, err}
	}()
	c1, err = dial(l.Addr().String())
	if err != nil {
		l.Close()
		<-accepted
		return nil, nil, nil, err
	}
	r := <-accepted
	if r.err != nil {
		return nil, nil, nil, errors.Join(r.err, c1.Close(), l.Close())
	}
	return c1, r.c, func() {
		c1.Close()
		r.c.Close()
		l.Close()
	}, nil
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := rdmaListen()
		if err != nil {
			return nil, nil, nil, err
		}
		return pipe(rdmaDial, l)
	})
}

func TestConnIPv6(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := rdmaListen6()
		if err != nil {
			return nil, nil, nil, err
		}
		return pipe(rdmaDial, l)
	})
}

// tlsSubtests are those of nettest that crypto/tls can pass. The others go on
// writing after a write timed out, which crypto/tls refuses for good (see
// tls.Conn.SetWriteDeadline): on TCP they fail just the same.
const tlsSubtests = "BasicIO|PingPong|RacyRead|RacyWrite|ReadTimeout|WriteTimeout|PresentTimeout|CloseTimeout"

// TestConnTLS runs them in a process of their own, since nettest cannot be asked
// for some of its tests.
func TestConnTLS(t *testing.T) {
	t.Parallel() // it mostly waits
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.v", "-test.run=^TestConnTLSPart$/^("+tlsSubtests+")$")
	cmd.Env = append(os.Environ(), tlsPartEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name := range strings.SplitSeq(tlsSubtests, "|") {
		require.Contains(t, string(out), "--- PASS: TestConnTLSPart/"+name)
	}
}

const tlsPartEnv = "RDMANET_TEST_TLS"

func TestConnTLSPart(t *testing.T) {
	if os.Getenv(tlsPartEnv) == "" {
		return // TestConnTLS runs it
	}
	server, client := tlsConfigs(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		l, err := rdmaListen()
		if err != nil {
			return nil, nil, nil, err
		}
		c1, c2, stop, err := pipe(rdmaDial, l)
		if err != nil {
			return nil, nil, nil, err
		}
		// A handshake under a test's past deadline would fail for good.
		s, c := tls.Server(c2, server), tls.Client(c1, client)
		done := make(chan error, 1)
		go func() { done <- s.Handshake() }()
		if err := errors.Join(c.Handshake(), <-done); err != nil {
			stop()
			return nil, nil, nil, err
		}
		return tlsConn{c}, tlsConn{s}, func() {
			c.Close()
			s.Close()
			stop()
		}, nil
	})
}

// tlsConn takes it that the peer has closed first: crypto/tls then cannot say
// goodbye, and reports it. TCP would take the goodbye, and lose it.
type tlsConn struct{ *tls.Conn }

func (c tlsConn) Close() error {
	err := c.Conn.Close()
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
