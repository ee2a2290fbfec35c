//go:build !linux

package netio

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

type pathEnc struct{}

var errPlatform = fmt.Errorf("RoCE over UDP sockets on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// UDP carries packets over the kernel's UDP. It works on Linux only.
type UDP struct{}

var _ Conn = (*UDP)(nil)

// Listen fails: the identification of a sent IPv4 packet, which the ICRC covers, is
// under a program's control on Linux only.
func Listen(Config) (*UDP, error) { return nil, errPlatform }

// Send fails.
func (*UDP) Send(b *TxBatch) error { b.Reset(); return errPlatform }

// Poll returns 0.
func (*UDP) Poll() int { return 0 }

// Route fails.
func (*UDP) Route(_, _ netip.Addr) (Route, error) { return Route{}, errPlatform }

// Addrs fails.
func (*UDP) Addrs() ([]netip.Addr, error) { return nil, errPlatform }

// GroupRoute fails.
func (*UDP) GroupRoute(_, _ netip.Addr) (Route, error) { return Route{}, errPlatform }

// AddrRoute fails.
func (*UDP) AddrRoute(netip.Addr) (Route, error) { return Route{}, errPlatform }

// JoinGroup fails.
func (*UDP) JoinGroup(netip.Addr, int) (func(), error) { return nil, errPlatform }

// Prefer does nothing.
func (*UDP) Prefer(netip.Addr, netip.AddrPort) {}

// Fresh does nothing.
func (*UDP) Fresh(*Path) uint16 { return 0 }

// Stats returns zeros.
func (*UDP) Stats() Stats { return Stats{} }

// Close does nothing.
func (*UDP) Close() error { return nil }
