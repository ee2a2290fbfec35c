package softroce_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

const memberEnv = "SOFTROCE_TEST_MEMBER"

// A copy of the test binary is a process that is a member of a group.
func init() {
	if addr := os.Getenv(memberEnv); addr != "" {
		if err := memberMain(netip.MustParseAddr(addr)); err != nil {
			fmt.Println("failed", err)
		}
		os.Exit(0)
	}
}

// processGroup is the one of these tests.
func processGroup(addr netip.Addr) netip.Addr { return groups(addr)[0] }

const memberSlots, memberSlot = 64, verbs.GRHLen + 8

// memberMain prints the number in each datagram that comes.
func memberMain(addr netip.Addr) error {
	m, err := newMember(softroce.Default(), addr, memberSlots)
	if err != nil {
		return err
	}
	if _, err := m.id.Join(context.Background(), &verbs.JoinAttr{Group: processGroup(addr)}); err != nil {
		return err
	}
	fmt.Println("joined")
	wcs := make([]verbs.WC, 8)
	for {
		n, err := m.cq.Poll(wcs)
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.Success {
				return wc.Status
			}
			fmt.Println("got", binary.BigEndian.Uint64(m.arena.Bytes()[int(wc.ID)*memberSlot+verbs.GRHLen:]))
			if err := m.post(wc.ID); err != nil {
				return err
			}
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// member is a queue pair with some receives.
type member struct {
	id    verbs.UDCMID
	qp    verbs.QP
	cq    verbs.CQ
	pd    verbs.PD
	arena verbs.Arena
	mr    verbs.MR
}

func newMember(p verbs.Provider, addr netip.Addr, receives int) (*member, error) {
	id, err := p.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSUDP, Local: netip.AddrPortFrom(addr, 0)})
	if err != nil {
		return nil, err
	}
	m := &member{id: id.(verbs.UDCMID)}
	if m.pd, err = id.Device().AllocPD(); err != nil {
		return nil, err
	}
	if m.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 256}); err != nil {
		return nil, err
	}
	if m.arena, err = m.pd.NewArena(64 << 10); err != nil {
		return nil, err
	}
	if m.mr, err = m.pd.RegMR(m.arena.Bytes(), verbs.LocalWrite); err != nil {
		return nil, err
	}
	if m.qp, err = id.CreateQP(m.pd, &verbs.QPInitAttr{Type: verbs.UD, SendCQ: m.cq, RecvCQ: m.cq}); err != nil {
		return nil, err
	}
	for i := range receives {
		if err := m.post(uint64(i)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *member) post(slot uint64) error {
	_, err := m.qp.PostRecv([]verbs.RecvWR{{
		ID: slot, SGL: []verbs.SGE{{Addr: m.mr.Addr() + slot*memberSlot, Length: memberSlot, LKey: m.mr.LKey()}},
	}})
	return err
}

func (m *member) close(t testing.TB) {
	for _, c := range []interface{ Close() error }{m.qp, m.id, m.cq, m.mr, m.arena, m.pd} {
		require.NoError(t, c.Close())
	}
}

// memberProcess is another process, and what it has got.
type memberProcess struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	got  map[int]int
	said []string
}

func startMember(t *testing.T, addr netip.Addr) *memberProcess {
	t.Helper()
	p := &memberProcess{cmd: exec.Command(os.Args[0]), got: make(map[int]int)}
	p.cmd.Env = append(os.Environ(), memberEnv+"="+addr.String())
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.mu.Lock()
			if n, ok := strings.CutPrefix(in.Text(), "got "); ok {
				i, _ := strconv.Atoi(n)
				p.got[i]++
			} else {
				p.said = append(p.said, in.Text())
			}
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-done
		_ = p.cmd.Wait()
	})
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.said) > 0
	}, 20*time.Second, time.Millisecond)
	require.Equal(t, []string{"joined"}, p.said)
	return p
}

// hasAll waits until a process has got the numbers from to to-1, each once.
func (p *memberProcess) hasAll(t *testing.T, from, to int) {
	t.Helper()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := from; i < to; i++ {
			if p.got[i] == 0 {
				return false
			}
		}
		return true
	}, 20*time.Second, time.Millisecond, "%d to %d", from, to)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range p.got {
		require.Equal(t, 1, n, "number %d", i)
	}
	require.Equal(t, []string{"joined"}, p.said)
}

// TestGroupProcesses: each of several processes of a host gets every datagram once; those that are killed leave no trace, and one
// that is stopped keeps nobody else from anything.
func TestGroupProcesses(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	for _, a := range []string{"10.9.0.1", "fd09::1"} {
		t.Run(a, func(t *testing.T) {
			addr := netip.MustParseAddr(a)
			var ps []*memberProcess
			for range 4 {
				ps = append(ps, startMember(t, addr))
			}
			require.NotEmpty(t, memberships(t))
			m, err := newMember(provider(t, &softroce.Config{}), addr, 0)
			require.NoError(t, err)
			g, err := m.id.Join(t.Context(), &verbs.JoinAttr{Group: processGroup(addr), SendOnly: true})
			require.NoError(t, err)
			ah, err := m.pd.CreateAH(&g.AH)
			require.NoError(t, err)
			next := 0
			say := func(n int) {
				for range n {
					_, err := m.qp.PostSend([]verbs.SendWR{{
						Op: verbs.OpSend, Inline: binary.BigEndian.AppendUint64(nil, uint64(next)), AH: ah, RemoteQPN: g.QPN, RemoteQKey: g.QKey,
					}})
					require.NoError(t, err)
					next++
					time.Sleep(200 * time.Microsecond)
				}
			}
			say(100)
			for _, p := range ps {
				p.hasAll(t, 0, 100)
			}
			require.NoError(t, ps[0].cmd.Process.Kill())
			require.NoError(t, ps[1].cmd.Process.Signal(syscall.SIGSTOP))
			say(50)
			for _, p := range ps[2:] {
				p.hasAll(t, 0, 150)
			}
			require.NoError(t, ps[1].cmd.Process.Signal(syscall.SIGCONT))
			ps[1].hasAll(t, 0, 150)
			for _, p := range ps {
				_ = p.cmd.Process.Kill()
			}
			require.Eventually(t, func() bool { return len(memberships(t)) == 0 }, 10*time.Second, 5*time.Millisecond, "%v", memberships(t))
			require.NoError(t, ah.Close())
			m.close(t)
		})
	}
}

// TestJoinsAndLeaves: 1,000 joins and leaves from 8 goroutines leave nothing behind.
func TestJoinsAndLeaves(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	p := provider(t, &softroce.Config{})
	var wg sync.WaitGroup
	for i := range 8 {
		addr := netip.MustParseAddr([]string{"10.9.0.1", "fd09::1"}[i%2])
		m, err := newMember(p, addr, 1)
		require.NoError(t, err)
		defer m.close(t)
		wg.Go(func() {
			gs := groups(addr)
			for j := range 125 {
				u, err := m.id.Join(t.Context(), &verbs.JoinAttr{Group: gs[(i+j)%2]})
				if err == nil {
					err = m.id.Leave(u)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, memberships(t))
}
