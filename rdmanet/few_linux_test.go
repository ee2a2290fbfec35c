package rdmanet_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rdmanet"
)

func init() { roles["few"] = fewRole }

// fewRole serves echoes with as few descriptors as its first argument says. It prints the first error of Accept that
// is temporary.
func fewRole() error {
	n, err := strconv.ParseUint(os.Args[1], 10, 32)
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return err
	}
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		untilStdinEnds()
		l.Close()
	}()
	told := false
	for {
		c, err := l.Accept()
		var ne net.Error
		switch {
		case err == nil:
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.As(err, &ne) && ne.Temporary(): //nolint:staticcheck // servers ask for it
			if !told {
				fmt.Println("accept", errors.Is(err, syscall.EMFILE), err)
				told = true
			}
			time.Sleep(5 * time.Millisecond)
		default:
			return err
		}
	}
}

// TestFewDescriptors: with descriptors for some of its peers a server serves these, and says what it lacks when
// more come. When some go it has room for others.
func TestFewDescriptors(t *testing.T) {
	t.Parallel() // it mostly waits
	if !inOwnNetwork(t, 3*time.Minute) {
		return
	}
	t.Run("enough for 25 processes", func(t *testing.T) {
		s := startAs(t, uint32(os.Geteuid()), "few", "110")
		addr := s.line(t)
		for i, p := range startActors(t, 25) {
			connectOnce(t, p, addr, i)
		}
		s.end(t)
	})
	t.Run("too few", func(t *testing.T) {
		s := startAs(t, uint32(os.Geteuid()), "few", "60")
		addr := s.line(t)
		said := make(chan string, 1)
		go func() {
			s.out.Scan()
			said <- s.out.Text()
		}()
		ps := startActors(t, 30)
		var good []*actorProcess
		for i, p := range ps {
			p.do(t, "dial %d %s", i, addr)
		}
		select {
		case text := <-said:
			t.Log(text)
			assert.True(t, strings.HasPrefix(text, "accept true "), text)
			assert.Contains(t, text, "too many open files")
			assert.Contains(t, text, "ulimit -n")
		case <-time.After(15 * time.Second):
			require.FailNow(t, "the server says nothing")
		}
		served := func() bool { // the one who was served may say so after the server has said what it lacks
			good = good[:0]
			for _, p := range ps {
				p.mu.Lock()
				if len(p.heard) == 1 && strings.HasPrefix(p.heard[0], "dialed") {
					good = append(good, p)
				}
				p.mu.Unlock()
			}
			return len(good) > 0
		}
		require.Eventually(t, served, 10*time.Second, 5*time.Millisecond)
		t.Log(len(good), "connections stand")
		// Those that have their connection keep it; when the others have gone there is room.
		for _, p := range ps {
			if p != good[0] {
				p.kill()
			}
		}
		late := startActor(t)
		connectOnce(t, late, addr, 100)
		require.Len(t, good[0].unasked(), 1)
		good[0].kill()
		late.kill()
		s.end(t)
	})
}

func startActors(t *testing.T, n int) (ps []*actorProcess) {
	for range n {
		ps = append(ps, startActor(t))
	}
	return ps
}
