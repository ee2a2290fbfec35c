package netio

import "github.com/go-rdma/rdma/internal/race"

// ioSync orders what was done before a Send before what is done with the packets, in one process.
var ioSync race.Sync

// Arrived is called for packets that came back into the process by another way
// than a Conn: through a process that handed them over.
func Arrived() { ioSync.Acquire() }
