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
	"golang.org/x/sys/unix"

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
		case "hold": // and take nobody; anyone: with a queue, which is full
			require.NoError(t, holdName(portKey{verbs.PSTCP, at.Port()}, anyone))
			fmt.Println(at)
		case "hoard": // has the one who listens map segments, until it will not
			n, err := hoard(ctx, at)
			fmt.Println(n, err)
		case "silent": // more than one user may have
			for range 2 * maxForeignHandshakes {
				_, _, err := dialName(portKey{verbs.PSTCP, at.Port()})
				require.NoError(t, err)
			}
			fmt.Println(at)
		case "inflight":
			fmt.Println(inflight(t))
		case "dial":
			fmt.Println(reach(ctx, p, at, anyone, 0))
		case "sidle": // to another port, by the link with the process
			fmt.Println(reach(ctx, p, at, anyone, 1))
		}
	}
}

// holdName takes a port's name for as long as the process lives, and takes nobody who comes.
func holdName(k portKey, queue bool) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: portName(k)}); err != nil || !queue {
		return err
	}
	if err := unix.Listen(fd, 0); err != nil {
		return err
	}
	for err == nil {
		_, _, err = dialName(k)
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// inflight has one end of a link give a segment to the other while this user has so many descriptors on their way that the kernel takes no
// more. It is nil if the segment comes once there is room again.
func inflight(t *testing.T) error {
	x, y := connected(t, New(), New())
	var lim unix.Rlimit
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err = errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)); err != nil {
		return err
	}
	few := lim
	few.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		return err
	}
	for err == nil {
		err = sendMessage(pair[0], []byte{1}, pair[0])
	}
	if !errors.Is(err, unix.ETOOMANYREFS) {
		return err
	}
	_, num, err := x.qp.(*qp).dev.export(pageSize)
	time.Sleep(100 * time.Millisecond)
	if err = errors.Join(err, unix.Close(pair[0]), unix.Close(pair[1]), unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)); err != nil {
		return err
	}
	l := y.qp.(*qp).dev.link
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l.segments[num].Load() != nil {
			return nil
		}
	}
	return errors.New("it never came")
}

// hoard gives pages to who listens at an address, by several links, each until it breaks. It tells how many links stand.
func hoard(ctx context.Context, at netip.AddrPort) (links int, err error) {
	for range 4 {
		id, err := New().Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: at})
		if err != nil {
			return links, err
		}
		links++
		d := id.Device().(*device)
		for err == nil && d.linked() {
			_, _, err = d.export(pageSize)
		}
	}
	return links, nil
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

	// Whose a name is shows only in a connection: who takes none must not keep others from their port, nor dials from it.
	t.Run("Hold", func(t *testing.T) {
		for i, queue := range []bool{false, true} {
			at := netip.AddrPortFrom(any0.Addr(), uint16(20001+i))
			a.do("hold", queue, at)
			for range 2 {
				_, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: at})
				require.ErrorIs(t, err, verbs.ErrNoDevice, "to be done without")
				require.ErrorIs(t, err, syscall.EADDRINUSE)
			}
			begin := time.Now()
			got := reach(ctx, p, at, false, 0)
			require.Contains(t, got, "resolve device=true")
			require.Less(t, time.Since(begin), 5*time.Second)
		}
	})

	// Those who say nothing keep their own user out, and no other.
	t.Run("Silent", func(t *testing.T) {
		l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: any0, AnyUser: true})
		require.NoError(t, err)
		defer l.Close()
		a.do("silent", true, l.Addr())
		done := make(chan *side)
		go func() {
			s, err := acceptFrom(ctx, l)
			if err != nil {
				s = nil
			}
			done <- s
		}()
		begin := time.Now()
		require.Equal(t, "connected to uid 0", b.do("dial", false, l.Addr()))
		require.Less(t, time.Since(begin), 5*time.Second)
		s := <-done
		require.NotNil(t, s)
		_, err = s.close()
		require.NoError(t, err)
	})

	// Whoever may come in at all must not use up what links take: this user's own are the poorer for it.
	t.Run("Hoard", func(t *testing.T) {
		b := New()
		open, err := b.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: any0, AnyUser: true})
		require.NoError(t, err)
		defer open.Close()
		a.do("hoard", false, open.Addr())
		require.Less(t, room.n.Load(), int64(mostMappings/4))
		x, y := connected(t, New(), b)
		ping(t, x, y)
		for _, s := range []*side{x, y} {
			_, err := s.close()
			require.NoError(t, err)
		}
	})

	// What the kernel does not take now is sent later.
	t.Run("InFlight", func(t *testing.T) {
		require.Equal(t, "<nil>", startUser(t, one).do("inflight", false, any0)) // root may have any number
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

	// One who has many numbers has no more for it in the end.
	var all []int
	for len(all) < maxForeigners {
		uid := 100000 + len(all)
		require.NoError(t, f.add(uid))
		all = append(all, uid)
	}
	require.ErrorIs(t, f.add(99999), syscall.EUSERS)
	require.NoError(t, f.add(os.Geteuid()))
	for _, uid := range all {
		f.remove(uid)
	}
	require.NoError(t, f.add(99999))
	f.remove(99999)
	require.Empty(t, f.n)
}
