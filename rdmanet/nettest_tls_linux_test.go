package rdmanet_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// tlsSubtests are nettest's, each with how it stands inside TLS.
var tlsSubtests = map[string]tlsStand{
	"BasicIO":           goodbye,
	"PingPong":          goodbye,
	"RacyRead":          unaided,
	"RacyWrite":         unaided,
	"ReadTimeout":       unaided,
	"WriteTimeout":      unaided,
	"PastTimeout":       notInTLS,
	"PresentTimeout":    unaided,
	"FutureTimeout":     notInTLS,
	"CloseTimeout":      unaided,
	"ConcurrentMethods": notInTLS,
}

type tlsStand string

const (
	unaided tlsStand = "passes" // over TCP and over RDMA

	// The end that closes last cannot say goodbye, and crypto/tls reports it. TCP would take the
	// goodbye, and lose it.
	goodbye tlsStand = "passes but for EPIPE from the later Close"

	// The test goes on writing after a write timed out, which crypto/tls refuses for good (see
	// tls.Conn.SetWriteDeadline), whatever it runs over.
	notInTLS tlsStand = "fails over TCP too"
)

// What a subtest runs over.
const (
	tlsTCP       = "tcp"
	tlsRDMA      = "rdma"
	tlsRDMATaken = "rdma, goodbyes taken" // with tlsConn
)

// runTLS runs a subtest in a process of its own, since nettest cannot be asked for one of its tests, nor a
// test be expected to fail. It returns how often the subtest has passed.
func runTLS(t *testing.T, subtest, over string, count int, timeout time.Duration) (passed int, out string) {
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, "-test.v", fmt.Sprint("-test.count=", count), fmt.Sprint("-test.timeout=", timeout),
		"-test.run=^TestConnTLSPart$/^"+subtest+"$")
	cmd.Env = append(os.Environ(), tlsPartEnv+"="+over)
	b, _ := cmd.CombinedOutput() // its output says more than its error
	out = string(b)
	require.Contains(t, out, "=== RUN   TestConnTLSPart/"+subtest)
	return strings.Count(out, "--- PASS: TestConnTLSPart/"+subtest), out
}

// TestConnTLS: each of nettest's tests stands inside TLS as the table says. What does not pass over RDMA
// is held against TCP: an exception does not outlive its reason.
func TestConnTLS(t *testing.T) {
	t.Parallel() // it mostly waits
	count := 1
	if long {
		count = 50
	}
	const soon = 5 * time.Second // what fails, fails by hanging
	for name, stand := range tlsSubtests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			switch stand {
			case unaided:
				passed, out := runTLS(t, name, tlsRDMA, count, 20*time.Minute)
				require.Equal(t, count, passed, "%s", out)
			case goodbye:
				passed, out := runTLS(t, name, tlsTCP, 1, time.Minute)
				require.Equal(t, 1, passed, "over TCP: %s", out)
				// Both may also close at the same moment.
				for tries := 0; ; tries++ {
					require.Less(t, tries, 20, "it passes unaided: %s", out)
					if passed, out = runTLS(t, name, tlsRDMA, 1, time.Minute); passed == 0 {
						break
					}
				}
				require.Contains(t, out, "failed to send closeNotify alert")
				require.Contains(t, out, syscall.EPIPE.Error())
				passed, out = runTLS(t, name, tlsRDMATaken, count, 20*time.Minute)
				require.Equal(t, count, passed, "%s", out)
			case notInTLS:
				if provider() != "softroce" {
					return // once will do
				}
				passed, out := runTLS(t, name, tlsTCP, 1, soon)
				require.Zero(t, passed, "it passes over TCP: %s", out)
			}
		})
	}
}

// TestConnTLSKnowsAll of nettest's tests.
func TestConnTLSKnowsAll(t *testing.T) {
	exe, err := os.Executable()
	require.NoError(t, err)
	out, err := exec.Command(exe, "-test.v", "-test.run=^TestConn$").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^    --- PASS: TestConn/(\S+)`).FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(tlsSubtests)), names)
}

const tlsPartEnv = "RDMANET_TEST_TLS"

func TestConnTLSPart(t *testing.T) {
	over := os.Getenv(tlsPartEnv)
	if over == "" {
		return // TestConnTLS runs it
	}
	server, client := tlsConfigs(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		var l net.Listener
		var err error
		dial := rdmaDial
		if over == tlsTCP {
			l, err = net.Listen("tcp", "127.0.0.1:0")
			dial = func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }
		} else {
			l, err = rdmaListen()
		}
		if err != nil {
			return nil, nil, nil, err
		}
		c1, c2, stop, err := pipe(dial, l)
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
		stopTLS := func() {
			c.Close()
			s.Close()
			stop()
		}
		if over == tlsRDMATaken {
			return tlsConn{c}, tlsConn{s}, stopTLS, nil
		}
		return c, s, stopTLS, nil
	})
}

// tlsConn takes the goodbye of the end that closes last, as TCP does.
type tlsConn struct{ *tls.Conn }

func (c tlsConn) Close() error {
	err := c.Conn.Close()
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
