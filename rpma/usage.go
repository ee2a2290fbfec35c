package rpma

import (
	"strings"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Usage says what a memory region is for. The bits are those of the descriptor.
type Usage uint8

// Uses of a region. A region may have several.
const (
	ReadSrc         Usage = 1 << iota // the peer reads it
	ReadDst                           // what is read from the peer goes there
	WriteSrc                          // what is written to the peer comes from there
	WriteDst                          // the peer writes it
	FlushVisibility                   // the peer may flush it with Visibility
	FlushPersistent                   // the peer may flush it with Persistent
	SendBuf                           // messages are sent from there
	RecvBuf                           // messages are received there
)

var usageNames = [...]string{"ReadSrc", "ReadDst", "WriteSrc", "WriteDst", "FlushVisibility", "FlushPersistent", "SendBuf", "RecvBuf"}

func (u Usage) String() string {
	var names []string
	for i, n := range usageNames {
		if u&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "0"
	}
	return strings.Join(names, "|")
}

const (
	flushUses = FlushVisibility | FlushPersistent
	readable  = ReadSrc | flushUses // a flush may be a READ
	writable  = ReadDst | WriteDst | RecvBuf
)

// access is what a device must know of a region's use. Regions that may be flushed are registered for READ too, which peers
// whose devices have no FLUSH do instead; and for FLUSH only where the device has it.
func (u Usage) access(native, iwarp bool) (a verbs.Access) {
	if u&readable != 0 {
		a |= verbs.RemoteRead
	}
	if u&writable != 0 {
		a |= verbs.LocalWrite
	}
	if u&WriteDst != 0 {
		a |= verbs.RemoteWrite
	}
	if iwarp && u&ReadDst != 0 {
		a |= verbs.RemoteWrite // an iWARP READ's response is a write of the peer's (RFC 5040)
	}
	if native && u&FlushVisibility != 0 {
		a |= verbs.FlushGlobal
	}
	if native && u&FlushPersistent != 0 {
		a |= verbs.FlushPersistent
	}
	return a
}
