package rdmanet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProcessesRestart kills a client, or a server, and starts it again at once, many times. What is left of the one
// before is in nobody's way: no port is taken, no connection refused as stale.
func TestProcessesRestart(t *testing.T) {
	t.Parallel() // it mostly waits
	const times = 100
	if !inOwnNetwork(t, 4*time.Minute) {
		return
	}
	t.Run("client", func(t *testing.T) {
		server := startActor(t)
		var slowest time.Duration
		for i := range times {
			client := startActor(t)
			slowest = max(slowest, connectOnce(t, client, server.addr, i))
			client.kill()
			require.Empty(t, server.unasked())
		}
		t.Log("slowest dial", slowest)
	})
	t.Run("server", func(t *testing.T) {
		client, server := startActor(t), startActor(t)
		var slowest time.Duration
		for i := range times {
			slowest = max(slowest, connectOnce(t, client, server.addr, i))
			addr := server.addr
			server.kill()
			server = startActor(t, addr)
			require.Equal(t, addr, server.addr)
			client.wait(t, deathTime, fmt.Sprintf("broken %d reset ", i))
		}
		t.Log("slowest dial", slowest)
	})
}

// connectOnce dials and finds that data flows.
func connectOnce(t *testing.T, from *actorProcess, addr string, id int) time.Duration {
	t.Helper()
	begin := time.Now()
	from.do(t, "dial %d %s", id, addr)
	require.Equal(t, fmt.Sprint("dialed ", id), from.wait(t, dialTime, fmt.Sprint("dialed ", id), fmt.Sprint("failed ", id)))
	took := time.Since(begin)
	require.Eventually(t, func() bool {
		from.do(t, "count %d", id)
		return from.wait(t, 10*time.Second, fmt.Sprint("count ", id)) != fmt.Sprintf("count %d 0", id)
	}, 10*time.Second, time.Millisecond)
	return took
}
