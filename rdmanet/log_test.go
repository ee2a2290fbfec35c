package rdmanet

import (
	"bytes"
	"encoding/json"
	"log"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// logLines is a log that is kept.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// lines are the records so far.
func (l *logLines) lines(t *testing.T) (records []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.b.Bytes()) {
		var r map[string]any
		require.NoError(t, json.Unmarshal(line, &r))
		records = append(records, r)
	}
	return records
}

// defaultLog takes what goes to slog.Default until the test ends.
func defaultLog(t *testing.T) *logLines {
	l := new(logLines)
	old, out, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(l.logger())
	t.Cleanup(func() {
		slog.SetDefault(old)
		log.SetOutput(out) // which SetDefault has changed
		log.SetFlags(flags)
	})
	return l
}

// What nobody is told otherwise is logged once, with its cause; what Accept returns, and what peers do, is not.
func TestListenerLogsOncePerCause(t *testing.T) {
	for _, own := range []bool{false, true} {
		byDefault, given := defaultLog(t), new(logLines)
		lc, got, other := ListenConfig{}, byDefault, given
		if own {
			lc.Logger = given.logger()
			got, other = given, byDefault
		}
		parts, bs := brokenParts(2)
		l := newListener("rdma", lc, parts, 4, make(chan error, 1))
		for _, err := range []error{syscall.ETIMEDOUT, ErrProtocol, &RejectError{Reason: 4}, syscall.EMFILE, syscall.EMFILE} {
			l.slots <- struct{}{}
			l.done(nil, nil, err)
		}
		assert.Empty(t, got.lines(t))

		bs[0].fail <- &os.SyscallError{Syscall: "recvmmsg", Err: syscall.ENODEV}
		require.Eventually(t, func() bool { return len(got.lines(t)) > 0 }, 10*time.Second, time.Millisecond)
		for range 3 {
			require.NoError(t, l.SetDeadline(time.Now().Add(time.Millisecond)))
			_, err := l.Accept()
			require.Error(t, err)
		}
		require.NoError(t, l.Close())

		lines := got.lines(t)
		require.Len(t, lines, 1, "and none for the part that was closed")
		assert.Equal(t, "WARN", lines[0]["level"])
		assert.Equal(t, "softroce", lines[0]["provider"])
		assert.Equal(t, l.Addr().String(), lines[0]["addr"])
		assert.Contains(t, lines[0]["err"], "no such device")
		assert.Empty(t, other.lines(t))
	}
}
