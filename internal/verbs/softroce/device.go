package softroce

import (
	"errors"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/netio"
)

var errNotYet = errors.New("softroce: not yet")

// device is one softroce device: the queue pairs of a process slot on a network.
type device struct {
	cfg  *Config
	slot uint8
	conn netio.Conn

	// onMAD takes datagrams for QPN 1 whose Q_Key is right. onForeign takes packets for queue pairs of another slot. Both
	// are set before the device is used.
	onMAD     func(p *netio.Packet, mad []byte)
	onForeign func(p *netio.Packet, destQPN uint32)
}

func newDevice(cfg *Config, slot uint8) (*device, error) { return nil, errNotYet }

func (d *device) retain()  {}
func (d *device) release() {}

func (d *device) sendMAD(path *netio.Path, mad []byte) error { return errNotYet }

func (d *device) Info() *verbs.DeviceInfo                       { return nil }
func (d *device) AllocPD() (verbs.PD, error)                    { return nil, errNotYet }
func (d *device) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) { return nil, errNotYet }
func (d *device) Close() error                                  { return errNotYet }
func (d *device) HandlePackets(ps []netio.Packet)               {}

type pd struct{}

func (d *device) newQP(p *pd, attr *verbs.QPInitAttr) (*qp, error) { return nil, errNotYet }
