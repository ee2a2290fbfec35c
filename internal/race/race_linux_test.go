package race_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/race"
)

// TestEdge runs this binary again in two ways: with Release and Acquire the detector
// must be content, without them it must find the race.
func TestEdge(t *testing.T) {
	switch os.Getenv("RACE_TEST") {
	case "":
	case "edge":
		handOver(t, true)
		return
	case "none":
		handOver(t, false)
		return
	}
	for mode, racy := range map[string]bool{"edge": false, "none": race.Enabled} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestEdge$")
		cmd.Env = append(os.Environ(), "RACE_TEST="+mode, "GORACE=exitcode=66")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if found := errors.As(err, &exit) && strings.Contains(string(out), "DATA RACE"); found != racy || err != nil && !found {
			t.Errorf("%s: race found: %v, want %v (%v)\n%s", mode, found, racy, err, out)
		}
	}
}

// handOver passes a value between goroutines that are ordered only by the closing
// of a pipe, which the detector does not know of.
func handOver(t *testing.T, edge bool) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	var s race.Sync
	x := new(int)
	go func() {
		*x = 1
		if edge {
			s.Release()
		}
		unix.Close(p[1])
	}()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p[0])}}, -1)
		if n == 1 {
			break
		}
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
	if edge {
		s.Acquire()
	}
	if *x != 1 {
		t.Fatal("value not seen")
	}
}
