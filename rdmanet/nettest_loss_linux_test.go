package rdmanet_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// badNetworks are those on which programs run in real time.
var badNetworks = []simnet.Options{
	{Loss: 0.01},
	{Loss: 0.05, Dup: 0.02, Reorder: 0.02, Delay: 20 * time.Microsecond},
}

func lossName(o simnet.Options) string { return fmt.Sprintf("%g%% lost", 100*o.Loss) }

// TestConnLossy is nettest, in real time, since it cannot run in a bubble of simulated time.
func TestConnLossy(t *testing.T) {
	for _, o := range badNetworks {
		t.Run(lossName(o), func(t *testing.T) {
			s := newSim(t, 1, o)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				l, err := s.tryListen()
				if err != nil {
					return nil, nil, nil, err
				}
				return pipe(s.dial, l)
			})
		})
	}
}
