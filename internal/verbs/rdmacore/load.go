//go:build linux && cgo

package rdmacore

import (
	"errors"
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
		return errors.New("built without the headers of libibverbs and librdmacm: apt-get install libibverbs-dev librdmacm-dev, " +
			"then build again with go build -a, since go's cache does not see new headers")
	case noLibibverbs:
		return fmt.Errorf("%s: apt-get install libibverbs1 ibverbs-providers librdmacm1", text)
	case noLibrdmacm:
		return fmt.Errorf("%s: apt-get install librdmacm1", text)
	case noSymbol:
		return fmt.Errorf("libibverbs or librdmacm is too old, it lacks %s: upgrade libibverbs1 and librdmacm1", text)
	}
	return fmt.Errorf("loading libibverbs and librdmacm: %d %s", why, text)
}
