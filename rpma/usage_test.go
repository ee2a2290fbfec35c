package rpma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestAccess: every use and every combination of them, on each kind of device.
func TestAccess(t *testing.T) {
	each := map[Usage]verbs.Access{
		ReadSrc: verbs.RemoteRead, ReadDst: verbs.LocalWrite, WriteSrc: 0, WriteDst: verbs.LocalWrite | verbs.RemoteWrite,
		FlushVisibility: verbs.RemoteRead, FlushPersistent: verbs.RemoteRead, SendBuf: 0, RecvBuf: verbs.LocalWrite,
	}
	for u := range 256 {
		for _, native := range []bool{false, true} {
			for _, iwarp := range []bool{false, true} {
				var want verbs.Access
				for bit, a := range each {
					if Usage(u)&bit != 0 {
						want |= a
					}
				}
				if iwarp && Usage(u)&ReadDst != 0 {
					want |= verbs.RemoteWrite
				}
				if native && Usage(u)&FlushVisibility != 0 {
					want |= verbs.FlushGlobal
				}
				if native && Usage(u)&FlushPersistent != 0 {
					want |= verbs.FlushPersistent
				}
				require.Equal(t, want, Usage(u).access(native, iwarp), "%v native %v iwarp %v", Usage(u), native, iwarp)
			}
		}
	}
}
