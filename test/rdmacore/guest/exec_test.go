//go:build guest

package guest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExec starts programs while data flows: they inherit no descriptor of a device's or of the connection manager's, and not
// a byte goes wrong.
func TestExec(t *testing.T) {
	a, b := streamPair(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // connections that come, so that there are descriptors just opened
		for {
			select {
			case <-stop:
				return
			default:
				c, d := streamPair(t)
				assert.NoError(t, c.Close())
				assert.NoError(t, d.Close())
			}
		}
	})
	moved := make(chan int64)
	pattern := make([]byte, 1<<16)
	for i := range pattern {
		pattern[i] = byte(i * 7 >> 3)
	}
	go func() {
		for {
			select {
			case <-stop:
				_ = a.Close() // the reader tells
				return
			default:
				if _, err := a.Write(pattern); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	go func() {
		got := make([]byte, len(pattern))
		n := int64(0)
		for {
			if _, err := io.ReadFull(b, got); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
			if !bytes.Equal(pattern, got) {
				t.Error("data have changed")
				break
			}
			n += int64(len(got))
		}
		moved <- n
	}()
	ours := 0
	links, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, l := range links {
		if to, err := os.Readlink("/proc/self/fd/" + l.Name()); err == nil && strings.Contains(to, "infiniband") {
			ours++
		}
	}
	require.Greater(t, ours, 2, "descriptors that could be inherited")
	for range 12 {
		out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
		require.NoError(t, err)
		for l := range strings.Lines(string(out)) {
			name, to, ok := strings.Cut(l, " -> ")
			if !ok {
				continue
			}
			fd, err := strconv.Atoi(name[strings.LastIndexByte(name, ' ')+1:])
			require.NoError(t, err, l)
			if fd > 2 {
				require.Contains(t, to, "/proc/", "that of ls itself, and no other")
			}
		}
	}
	close(stop)
	n := <-moved
	require.Positive(t, n)
	t.Logf("%d bytes moved meanwhile; %d descriptors below /dev/infiniband", n, ours)
	wg.Wait()
}
