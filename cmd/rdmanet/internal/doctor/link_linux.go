package doctor

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// iflaLinkNetnsID is there if an interface's other end is in another network namespace (rtnetlink(7), linux/if_link.h).
const iflaLinkNetnsID = 37

// pairedOutside tells whether an interface's other end is in another network namespace, as a container's is.
func pairedOutside(ifi string) bool {
	rib, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return false
	}
	return linkOutside(rib, ifi)
}

func linkOutside(rib []byte, ifi string) bool {
	messages, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return false
	}
	for i := range messages {
		if messages[i].Header.Type != syscall.RTM_NEWLINK {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&messages[i])
		if err != nil {
			continue
		}
		named, outside := false, false
		for _, a := range attrs {
			switch a.Attr.Type {
			case syscall.IFLA_IFNAME:
				named = string(bytes.TrimRight(a.Value, "\x00")) == ifi
			case iflaLinkNetnsID:
				outside = len(a.Value) == 4 && int32(binary.NativeEndian.Uint32(a.Value)) >= 0
			}
		}
		if named {
			return outside
		}
	}
	return false
}
