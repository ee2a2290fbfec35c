package rpma

import "github.com/go-rdma/rdma/internal/verbs"

// Tell has a connection told of an event, as its provider does.
func Tell(c *Conn, ev verbs.Event) { (*handler)(c).HandleEvent(ev) }
