package rpma

import (
	"log/slog"
	"sync/atomic"
)

var logger atomic.Pointer[slog.Logger]

// SetLogger says where the library logs what nobody may be told otherwise: connections that were lost, requests that could not be
// taken. nil, the default, is nowhere.
func SetLogger(l *slog.Logger) { logger.Store(l) }

func logWarn(msg string, c *Conn, err error) {
	if l := logger.Load(); l != nil {
		l.Warn("rpma: "+msg, "local", c.LocalAddr().String(), "remote", c.RemoteAddr().String(), "qp", c.QPNum(), "err", err)
	}
}
