//go:build linux

package shm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

const userEnv = "SHM_TEST_USER"

// TestUser is the process of another user. It does what the lines say that it reads, and says what came of it.
func TestUser(t *testing.T) {
	if os.Getenv(userEnv) == "" {
		return // it is no test by itself
	}
	p := New()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var what string
		var anyone bool
		var at netip.AddrPort
		_, err := fmt.Sscan(strings.ReplaceAll(in.Text(), ",", " "), &what, &anyone, newAddr(&at))
		require.NoError(t, err)
		switch what {
		case "listen":
			l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at, AnyUser: anyone})
			if err != nil {
				fmt.Printf("failed %v\n", err)
				continue
			}
			fmt.Println(l.Addr())
			go func() {
				for {
					if s, err := acceptFrom(ctx, l); err == nil {
						_, _ = s.qp.PostRecv(make([]verbs.RecvWR, 4))
					}
				}
			}()
		case "dial":
			fmt.Println(reach(ctx, p, at, anyone, 0))
		case "sidle": // to another port, by the link with the process
			fmt.Println(reach(ctx, p, at, anyone, 1))
		}
	}
}

// addrScanner reads an address.
type addrScanner struct{ at *netip.AddrPort }

func newAddr(at *netip.AddrPort) fmt.Scanner { return addrScanner{at} }

func (a addrScanner) Scan(s fmt.ScanState, _ rune) (err error) {
	tok, err := s.Token(true, nil)
	if err == nil {
		*a.at, err = netip.ParseAddrPort(string(tok))
	}
	return err
}

// reach dials and says what came of it. The port that is asked for is beyond by so many.
func reach(ctx context.Context, p *Provider, to netip.AddrPort, anyone bool, beyond uint16) string {
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: to, AnyUser: anyone})
	if err != nil {
		return fmt.Sprintf("resolve device=%v refused=%v %v", errors.Is(err, verbs.ErrNoDevice), errors.Is(err, syscall.ECONNREFUSED), err)
	}
	s, err := newSide(id)
	if err != nil {
		return err.Error()
	}
	defer s.close()
	c := id.(*cmid)
	c.remote = netip.AddrPortFrom(c.remote.Addr(), c.remote.Port()+beyond)
	if _, err = id.Connect(ctx, &sideParam); err != nil {
		return "connect " + err.Error()
	}
	_, err = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, Inline: []byte{1}}})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("connected to uid %d", c.Cred().UID)
}

// user is a process of another user.
type user struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startUser(t *testing.T, uid uint32) *user {
	u := &user{t: t, cmd: exec.Command("/proc/self/exe", "-test.run=^TestUser$", "-test.timeout=2m")}
	u.cmd.Env = append(os.Environ(), userEnv+"=1")
	u.cmd.Dir = "/"
	u.cmd.Stderr = os.Stderr
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := u.cmd.StdoutPipe()
	require.NoError(t, err)
	u.out = bufio.NewScanner(out)
	u.in, err = u.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, u.cmd.Start())
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		_ = u.cmd.Wait()
	})
	return u
}

// do has it do something at an address.
func (u *user) do(what string, anyone bool, at netip.AddrPort) string {
	u.t.Helper()
	_, err := fmt.Fprintln(u.in, what, anyone, at)
	require.NoError(u.t, err)
	require.True(u.t, u.out.Scan(), "no answer")
	u.t.Logf("uid %d: %s %v %v: %s", u.cmd.SysProcAttr.Credential.Uid, what, anyone, at, u.out.Text())
	return u.out.Text()
}

// TestUsers: who may connect to whom, as each of the two sides sees it.
func TestUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("only root can start other users' processes")
		}
		t.Skip("only root can start other users' processes")
	}
	const one, other = 65534, 1
	any0 := netip.MustParseAddrPort("127.0.0.1:0")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, b := startUser(t, one), startUser(t, other)
	p := New()

	t.Run("Dial", func(t *testing.T) {
		closed, open := netip.MustParseAddrPort(a.do("listen", false, any0)), netip.MustParseAddrPort(a.do("listen", true, any0))
		for _, at := range []netip.AddrPort{closed, open} {
			// What another user holds may be in the place of what root means to dial.
			got := reach(ctx, p, at, false, 0)
			require.Contains(t, got, "resolve device=true refused=false")
			require.Contains(t, got, fmt.Sprintf("held by a process of uid %d", one))
			require.Equal(t, fmt.Sprintf("connected to uid %d", one), reach(ctx, New(), at, true, 0), "all take root")
			require.Contains(t, b.do("dial", false, at), "resolve device=true refused=false")
		}
		require.Equal(t, fmt.Sprintf("connected to uid %d", one), b.do("dial", true, open))
		got := b.do("dial", true, closed)
		require.Contains(t, got, "resolve device=true refused=false")
		require.Contains(t, got, "takes no other users")
		require.Equal(t, fmt.Sprintf("connected to uid %d", one), a.do("dial", false, closed), "itself")
	})

	t.Run("Listen", func(t *testing.T) {
		at := netip.MustParseAddrPort(a.do("listen", true, any0))
		for _, u := range []bool{false, true} {
			_, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at, AnyUser: u})
			require.ErrorIs(t, err, verbs.ErrNoDevice, "to be done without")
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.ErrorContains(t, err, fmt.Sprintf("uid %d", one))
		}
		got := a.do("listen", true, at)
		require.Contains(t, got, "failed")
		require.NotContains(t, got, verbs.ErrNoDevice.Error(), "one's own port is in use")
	})

	t.Run("Accept", func(t *testing.T) {
		open, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: any0, AnyUser: true})
		require.NoError(t, err)
		defer open.Close()
		next := netip.AddrPortFrom(open.Addr().Addr(), open.Addr().Port()+1)
		closed, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: next})
		require.NoError(t, err)
		defer closed.Close()
		got := a.do("dial", false, closed.Addr())
		require.Contains(t, got, "resolve device=true refused=false")
		require.Contains(t, got, "takes no other users")

		done := make(chan *side)
		go func() {
			s, err := acceptFrom(ctx, open)
			if err != nil {
				s = nil
			}
			done <- s
		}()
		require.Equal(t, "connected to uid 0", a.do("dial", false, open.Addr()), "all trust root")
		s := <-done
		require.NotNil(t, s)
		cred := s.id.(verbs.Credentialed).Cred()
		require.Equal(t, verbs.Cred{PID: a.cmd.Process.Pid, UID: one, GID: one}, cred)
		_, err = s.close()
		require.NoError(t, err)

		// Who has come in by one port does not get to another.
		go func() {
			s, err := acceptFrom(ctx, open)
			if err != nil {
				s = nil
			}
			done <- s
		}()
		require.Contains(t, a.do("sidle", false, open.Addr()), "connect shm: connecting to")
		require.Zero(t, closed.Stats().Requests)
		require.Contains(t, a.do("dial", false, open.Addr()), "connected")
		s = <-done
		require.NotNil(t, s)
		_, err = s.close()
		require.NoError(t, err)
	})
}

// TestForeigners: another user's processes get so many links.
func TestForeigners(t *testing.T) {
	var f foreigners
	uid := os.Geteuid() + 1
	for range maxForeign {
		require.NoError(t, f.add(uid))
	}
	require.ErrorIs(t, f.add(uid), syscall.EUSERS)
	require.NoError(t, f.add(uid+1), "another one")
	for range 2 * maxForeign {
		require.NoError(t, f.add(os.Geteuid()))
		require.NoError(t, f.add(0))
	}
	f.remove(uid)
	require.NoError(t, f.add(uid))
	for range maxForeign {
		f.remove(uid)
	}
	f.remove(uid + 1)
	require.Empty(t, f.n)
}
