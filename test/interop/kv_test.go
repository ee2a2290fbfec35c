package interop

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// go-redis, unchanged but for its Dialer, and an unmodified redis-server.
func TestRedis(t *testing.T) { eachDevice(t, redis) }

func redis(t *testing.T, w *world) {
	addr := w.std.c.V4.String()
	server := w.c(t, w.preloaded(true), "redis-server", "--bind", addr, "--port", "6379", "--save", "", "--appendonly", "no",
		"--protected-mode", "no")
	server.Says("Ready to accept connections")
	// One worker is two connections: go-redis keeps one for pipelines. See README.md for why not more.
	runs := [][]string{{"-n", "10", "-size", "100000"}, {"-n", "3", "-size", "1500000"}}
	if w.device != "softroce" && !long {
		runs = runs[:1]
	}
	for _, flags := range runs {
		args := append(append([]string{"kv", "redis", "-conc", "1"}, flags...), net.JoinHostPort(addr, "6379"))
		assert.Contains(t, w.goAt(t, w.std, args...).Succeeds(), "got and got again")
	}
	assert.NoError(t, server.Cmd.Signal(syscall.SIGTERM))
	assert.Contains(t, server.Succeeds(), "bye bye")
}

func TestMemcached(t *testing.T) { eachDevice(t, memcached) }

func memcached(t *testing.T, w *world) {
	addr := w.std.c.V6.String()
	env := append(w.preloaded(true), "EVENT_NOEPOLL=1") // libevent's own poll
	server := w.c(t, env, "memcached", "-v", "-u", "root", "-l", addr, "-p", "11211", "-U", "0", "-t", "2")
	args := []string{"kv", "memcached", "-n", "10", "-conc", "3", "-size", "100000", net.JoinHostPort(addr, "11211")}
	out := w.goAt(t, w.std, args...).Succeeds()
	assert.Contains(t, out, "got and got again")
	server.Kill()
}

// preloaded is the environment that turns a program's sockets into rsockets: by librspreload alone or with what it lacks.
func (w *world) preloaded(gaps bool) []string {
	if gaps {
		return []string{"LD_PRELOAD=" + w.lib + ":" + preload}
	}
	return []string{"LD_PRELOAD=" + preload}
}
