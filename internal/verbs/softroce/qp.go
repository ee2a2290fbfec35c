package softroce

import (
	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

// rcAttr is what connects a queue pair to its peer.
type rcAttr struct {
	path         *netio.Path
	destQPN      uint32
	sqPSN, rqPSN uint32 // of this side's first request, of the peer's
	mtu          verbs.MTU
	ackTimeout   uint8 // code: 4.096 us * 2^t; 0: for ever
	retryCount   uint8
	rnrRetry     uint8 // 7: endless
	minRNRTimer  uint8 // code; 0: that of QPInitAttr

	maxRDAtomic, maxDestRDAtomic uint8
}

type qp struct {
	// onCommEst is called once, with no lock held, when the first valid packet
	// of the peer arrives after connect. Set before connect.
	onCommEst func()
}

func (q *qp) connect(a *rcAttr) error                        { return errNotYet }
func (q *qp) Num() uint32                                    { return 0 }
func (q *qp) Cap() verbs.QPCap                               { return verbs.QPCap{} }
func (q *qp) Stats() verbs.QPStats                           { return verbs.QPStats{} }
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) { return 0, errNotYet }
func (q *qp) PostRecv(wrs []verbs.RecvWR) (n int, err error) { return 0, errNotYet }
func (q *qp) ToError() error                                 { return errNotYet }
func (q *qp) Close() error                                   { return errNotYet }

var (
	_ verbs.Device  = (*device)(nil)
	_ netio.Handler = (*device)(nil)
	_ verbs.QP      = (*qp)(nil)
)
