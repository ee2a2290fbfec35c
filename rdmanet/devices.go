package rdmanet

import "github.com/go-rdma/rdma/rpma"

// Device describes an RDMA device.
type Device = rpma.Device

// Port describes one port of a device.
type Port = rpma.Port

// Devices describes all RDMA devices there are, usable or not. It never fails
// only because some are unusable.
func Devices() ([]Device, error) { return rpma.Devices() }
