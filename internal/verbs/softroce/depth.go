package softroce

import (
	"fmt"
	"math"
	"syscall"

	"github.com/go-rdma/rdma/internal/verbs"
)

// depths checks how many READs and atomics a consumer wants outstanding in either direction. 255 is as many as the
// device can (RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH of rdma_connect(3)).
func depths(p *verbs.ConnParam) (*verbs.ConnParam, error) {
	q := *p
	for _, d := range []struct {
		what string
		n    *uint8
	}{{"responder resources", &q.ResponderResources}, {"initiator depth", &q.InitiatorDepth}} {
		switch n := *d.n; {
		case n == math.MaxUint8:
			*d.n = maxRDAtomic
		case n > maxRDAtomic:
			return nil, fmt.Errorf("%s of %d, at most %d (255 takes that): %w", d.what, n, maxRDAtomic, syscall.EINVAL)
		}
	}
	return &q, nil
}
