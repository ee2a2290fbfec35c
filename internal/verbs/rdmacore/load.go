//go:build linux && cgo

package rdmacore

import (
	"fmt"
	"sync"
)

// load opens the libraries, or tells why it cannot.
var load = sync.OnceValue(func() error { return loadError(coreLoad()) })

// loadError explains why the libraries are not there.
func loadError(why int, text string) error {
	switch why {
	case 0:
		return nil
	case noHeaders:
		return notBuilt{&Fault{"built without the headers of libibverbs and librdmacm", "apt-get install libibverbs-dev librdmacm-dev, " +
			"then build again with go build -a, since go's cache does not see new headers", nil}}
	case noLibibverbs:
		return &Fault{text, "apt-get install libibverbs1 ibverbs-providers librdmacm1", nil}
	case noLibrdmacm:
		return &Fault{text, "apt-get install librdmacm1", nil}
	case noSymbol:
		return &Fault{"libibverbs or librdmacm is too old, it lacks " + text, "upgrade libibverbs1 and librdmacm1", nil}
	}
	return fmt.Errorf("loading libibverbs and librdmacm: %d %s", why, text)
}
