package leak

import (
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	switch os.Getenv("LEAK_TEST") {
	case "off":
		_ = thing()
		Exit(0)
	case "gone":
		Start()
		thing().Gone()
		Exit(0)
	case "late": // what is closed in the background
		Start()
		time.AfterFunc(50*time.Millisecond, thing().Gone)
		Exit(0)
	case "failed":
		Start()
		thing().Gone()
		Exit(7)
	case "left":
		exitPatience = 50 * time.Millisecond
		Start()
		_ = thing()
		Exit(0)
	}
	Start()
	os.Exit(m.Run())
}

func thing() *Mark {
	m := new(Mark)
	m.Made("thing")
	return m
}

// TestPlace: what is there is named with the place that made it, until it is gone.
func TestPlace(t *testing.T) {
	things := [...]*Mark{thing(), thing()}
	var other Mark
	other.Made("other")
	mem := make([]byte, 100)
	MadeMemory("mapping", mem)
	objects := Open()
	require.Len(t, objects, 3)
	assert.Equal(t, []int{1, 1, 2}, []int{objects[0].Count, objects[1].Count, objects[2].Count})
	err := Find(0)
	require.Error(t, err)
	assert.Regexp(t, `^left behind:
1 × mapping, made at
github.com/go-rdma/rdma/internal/leak.TestPlace\(...\)
	.*/leak_test.go:\d+
(.*\n)*1 × other, made at
github.com/go-rdma/rdma/internal/leak.TestPlace\(...\)
	.*/leak_test.go:\d+
(.*\n)*2 × thing, made at
github.com/go-rdma/rdma/internal/leak.thing\(...\)
	.*/leak_test.go:\d+
github.com/go-rdma/rdma/internal/leak.TestPlace\(...\)
	.*/leak_test.go:\d+
`, err.Error())
	for range 2 { // the second time does no harm
		things[0].Gone()
		things[1].Gone()
		other.Gone()
		GoneMemory(mem[:10])
	}
	require.NoError(t, Find(0))
}

// TestConcurrent: marks of many goroutines.
func TestConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				m := thing()
				_ = Open()
				m.Gone()
			}
		})
	}
	wg.Wait()
	require.NoError(t, Find(0))
}

// TestExit: a program that leaves nothing behind ends as its tests did, the other one fails and says what it left.
func TestExit(t *testing.T) {
	for mode, want := range map[string]int{"off": 0, "gone": 0, "late": 0, "failed": 7, "left": 1} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LEAK_TEST="+mode)
		out, err := cmd.CombinedOutput()
		if want == 0 {
			require.NoError(t, err, "%s: %s", mode, out)
			continue
		}
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, mode)
		assert.Equal(t, want, exit.ExitCode(), "%s: %s", mode, out)
		if mode == "left" {
			assert.Contains(t, string(out), "leak: left behind:\n1 × thing, made at\n")
		}
	}
}
