package recipes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/testnet"
	"github.com/go-rdma/rdma/rdmanet"
)

func TestMain(m *testing.M) {
	testnet.Main()
	if os.Getenv("RDMANET_DEVICE") == "" {
		os.Setenv("RDMANET_DEVICE", "softroce") // also where a RoCE device is, and shared memory
	}
	var err error
	if programs, err = os.MkdirTemp("", "recipes"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// programs is a directory for what tests build.
var programs string

// patience is for one step on a busy machine.
const patience = 60 * time.Second

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// need asks for programs that the project's CI installs.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, p)
		}
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		require.FailNow(t, "this test needs "+what+": .ci/run installs it")
	}
	t.Skip("this test needs ", what)
}

// dials is how many connections this process has made over RDMA.
func dials() (n uint64) {
	for _, s := range rdmanet.AllStats() {
		n += s.Dials - s.DialErrors
	}
	return n
}

// freePort is a TCP port that nobody has.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// process is a program that runs.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	out  strings.Builder
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return startCommand(t, exec.Command(name, args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%q printed:\n%s", cmd.Args, p.text())
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // if it still runs
	<-p.done
}

// says waits until the program has printed something, and returns the submatches.
func (p *process) says(re string) []string {
	p.t.Helper()
	var m []string
	require.Eventually(p.t, func() bool {
		m = regexp.MustCompile(re).FindStringSubmatch(p.text())
		return m != nil
	}, patience, 5*time.Millisecond, "%q: %s", re, p)
	return m
}

func (p *process) String() string { return p.text() }

// tool is cmd/rdmanet, of a module of its own.
var tool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "rdmanet")
	if out, err := exec.Command("go", "build", "-C", "../../cmd/rdmanet", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// proxied puts a TCP server on RDMA, and returns where.
func proxied(t *testing.T, port string) string {
	t.Helper()
	path, err := tool()
	require.NoError(t, err)
	return start(t, path, "proxy", "rdma://127.0.0.1:0", "tcp://127.0.0.1:"+port).says(`rdma://(127\.0\.0\.1:\d+) -> `)[1]
}

// startPostgreSQL has a database of its own. PostgreSQL does not run as root.
func startPostgreSQL(t *testing.T) (port string) {
	t.Helper()
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	require.NoError(t, err)
	if len(bins) == 0 {
		missing(t, "postgresql")
	}
	bin := bins[len(bins)-1]
	dir, err := os.MkdirTemp("", "postgresql") // and not t.TempDir(), which is not open to others
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		require.NoError(t, err)
		uid, err := strconv.Atoi(u.Uid)
		require.NoError(t, err)
		gid, err := strconv.Atoi(u.Gid)
		require.NoError(t, err)
		require.NoError(t, os.Chown(dir, uid, gid))
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(dir, "data")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		return cmd
	}
	out, err := command("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--locale=C").CombinedOutput()
	require.NoError(t, err, "%s", out)
	port = freePort(t)
	startCommand(t, command("postgres", "-D", data, "-h", "127.0.0.1", "-p", port, "-k", dir, "-F")).says("ready to accept connections")
	return port
}

// identity is a server's TLS configuration, and that of those who trust it.
func identity(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"server"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "server"}
}
