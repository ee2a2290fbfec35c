package interop

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the survivor sees when the other end is killed (SIGKILL), and when. A C program's kernel sends a DREQ for
// it, so its end is seen at once. The built-in device dies with its process without a word, and the kernel
// notices with data in flight only.

// atOnce bounds what needs one packet. A quarter of the transport's 17 s, which it must not be taken for.
const atOnce = 4 * time.Second

// endless is more than any test waits for.
var endless = []string{"-S", "20000", "-C", "1000", "-I", "1000"}

var endedLine = regexp.MustCompile(`(?m)^ended (\S+) after ([0-9.]+) s`)

// ended reads how a Go program says that its connection ended.
func ended(t *testing.T, out string) string {
	t.Helper()
	m := endedLine.FindStringSubmatch(out)
	require.NotNil(t, m, out)
	return m[1]
}

func TestDeathOfCServer(t *testing.T) { eachDevice(t, deathOfCServer) }

func deathOfCServer(t *testing.T, w *world) {
	for _, style := range []string{"idle", "busy"} {
		t.Run(style, func(t *testing.T) {
			server := w.rstreamServer(t, w.std.c.V4, append([]string{"rstream", "-T", "b"}, endless...))
			args := append([]string{"rstream", "-s", w.std.c.V4.String()}, endless...)
			if style == "idle" {
				args = append(args, "-idle")
			}
			client := w.goAt(t, w.std, args...)
			client.Says(map[string]string{"idle": "idle", "busy": "connected"}[style])
			time.Sleep(time.Second) // into the transfers
			killed := server.Kill()
			if style == "idle" {
				// Reading, it sees the end of the stream, as after any program in C that exits.
				out := client.Succeeds()
				assert.Less(t, time.Since(killed), atOnce)
				assert.Contains(t, out, "end after")
				return
			}
			// The two take turns: its end comes while it writes, or while it reads.
			assert.Contains(t, []string{"EOF", "EPIPE", "ECONNRESET"}, ended(t, client.endsSince(t, killed, atOnce)))
		})
	}
}

func TestDeathOfCClient(t *testing.T) { eachDevice(t, deathOfCClient) }

func deathOfCClient(t *testing.T, w *world) {
	for _, style := range []string{"idle", "busy"} {
		t.Run(style, func(t *testing.T) {
			args := append([]string{"rstream", "-b", w.std.ours.V6.String()}, endless...)
			if style == "idle" {
				args = append(args, "-idle")
			}
			server := w.goAt(t, w.std, args...)
			server.Says("listening on")
			client := w.c(t, nil, append([]string{"rstream", "-T", "b", "-s", w.std.ours.V6.String()}, endless...)...)
			server.Says(map[string]string{"idle": "idle", "busy": "connected"}[style])
			time.Sleep(time.Second) // into the transfers
			if style == "idle" {
				killed := client.Kill()
				out := server.Succeeds()
				assert.Less(t, time.Since(killed), atOnce)
				assert.Contains(t, out, "end after")
				return
			}
			killed := client.Kill()
			assert.Contains(t, []string{"EOF", "EPIPE", "ECONNRESET"}, ended(t, server.endsSince(t, killed, atOnce)))
		})
	}
}

// A Go program that is killed leaves no trace at the C end: its device is gone, and Soft-RoCE takes the retry count 7, which
// rsockets sets, for infinity (README.md). What must work is everything afterwards, at once: a Go server
// on the same port, and a Go client from the same address.
func TestDeathOfGo(t *testing.T) { eachDevice(t, deathOfGo) }

func deathOfGo(t *testing.T, w *world) {
	again := rstreamRun{size: 1000, count: 10, iters: 2, verify: true, c: []string{"-T", "b"}}
	t.Run("client", func(t *testing.T) {
		server := w.rstreamServer(t, w.std.c.V4, append([]string{"rstream", "-T", "b"}, endless...))
		client := w.goAt(t, w.std, append([]string{"rstream", "-s", w.std.c.V4.String()}, endless...)...)
		client.Says("connected")
		time.Sleep(time.Second) // into the transfers
		client.Kill()
		select {
		case <-server.Done: // fine as well
		case <-time.After(2 * time.Second):
			server.Kill()
		}
		again.run(t, w, true)
	})
	t.Run("server", func(t *testing.T) {
		server := w.goAt(t, w.std, append([]string{"rstream", "-b", w.std.ours.V4.String()}, endless...)...)
		server.Says("listening on")
		client := w.c(t, nil, append([]string{"rstream", "-T", "b", "-s", w.std.ours.V4.String()}, endless...)...)
		server.Says("connected")
		time.Sleep(time.Second) // into the transfers
		server.Kill()
		again.run(t, w, false) // while the other C client still tries
		select {
		case <-client.Done: // fine as well
		default:
			client.Kill()
		}
	})
}
