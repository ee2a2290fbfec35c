// Package verbstest is the conformance suite of providers: what package verbs
// promises, tried on the two ends of connections that the provider makes.
//
// It knows a provider only by its interfaces. Time in it is real: every wait
// is bounded by Config.Timeout, and a wait for completions parks on Arm and Notify
// like a consumer, so that a lost notification fails a test rather than slow it.
package verbstest

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
)

// Config says what is tested.
type Config struct {
	// Active is the provider of the ends that connect, Passive of those that
	// listen. They may be the same.
	Active, Passive verbs.Provider

	// Listen is the address that the passive end listens on, Dial the one under which
	// the active end reaches it. Ports are picked by the provider.
	Listen, Dial netip.Addr

	// ActiveDevice and PassiveDevice name the devices. Empty: chosen by address.
	ActiveDevice, PassiveDevice string

	// Unsupported are the operations that the provider is known to lack. Each
	// of them must be refused with [errors.ErrUnsupported]; each of the others must work.
	Unsupported []verbs.Opcode

	// NoInvalidate is for a provider without verbs.RemoteInvalidate: no region of a program can be invalidated by a peer, and a
	// SEND that tries to is refused.
	NoInvalidate bool

	// NoOverrun is for a provider whose completion queues do not tell of an overrun.
	NoOverrun bool

	// LocalErrors are the outcomes of a request, or of a receive, whose local key or range is wrong. None:
	// LocProtErr, as the specification has it (IBTA 10.10.3). rdma_rxe says LocQPOpErr of some.
	LocalErrors []verbs.Status

	// SilentRefusals is for a device that says nothing when it refuses the rest of a READ whose first
	// packets it has answered: rdma_rxe, with which a retry count of 7 is endless besides.
	SilentRefusals bool

	// OpenDevices has domains and queues made of what Open gives under the name of an identifier's device, and not of the
	// identifier's device itself, where they are two.
	OpenDevices bool

	// EarlyRefusal is for a provider whose Resolve finds out that nobody listens.
	EarlyRefusal bool

	// UncountedDrops is for a provider that does not learn of what is dropped: requests beyond a listener's backlog, datagrams
	// that meet no receive.
	UncountedDrops bool

	// NoDatagrams is for a provider without UD, or for a network that loses some of them.
	NoDatagrams bool

	// Overtakes is for a network on which a datagram may be overtaken by the next: several processes on a port, until
	// the kernel gives a flow to its owner's own socket.
	Overtakes bool

	// Groups are multicast addresses that the test may use, of the family of Dial. None: the device has no
	// multicast in that family, and says so.
	Groups []netip.Addr

	// RoutedHopLimit is for a device on which the route says how far a datagram to a peer goes, whatever AHAttr.HopLimit
	// says: RoCE on Linux.
	RoutedHopLimit bool

	// NoQKeyRule is for a device that takes a Q_Key with the high bit set as it is: rdma_rxe.
	NoQKeyRule bool

	// ShortReceiveFatal is for a device on which a datagram longer than the receive that it meets ends the queue pair:
	// rdma_rxe of Linux 6.1.
	ShortReceiveFatal bool

	// NoSendOnly, NoFreshGroups and NoMGID are for a device whose groups cannot be joined to send only, are not given out, or not
	// known by their identifier: RoCE through rdma_cm, as far as Linux refuses it.
	NoSendOnly, NoFreshGroups, NoMGID bool

	// NoBlockLoopback is for a device without QPInitAttr.BlockMulticastLoopback.
	NoBlockLoopback bool

	// PersistentMemory maps memory, of whole pages, that the device can make persistent. nil: there is none.
	PersistentMemory func(t testing.TB, size int) []byte

	// Others are providers of further peers, each like a process of its own, that reach Passive as Active does.
	Others []verbs.Provider

	// Allocates is for a provider on a simulated network that allocates for packets, so that the
	// provider cannot be held to allocating for none.
	Allocates bool

	// PathMTU is what connections are to have; 0: any.
	PathMTU verbs.MTU

	// Connections is the number of connections that are to stand at once; 0 is 300.
	Connections int

	// Timeout bounds each wait; 0 is 10 seconds.
	Timeout time.Duration
}

func (c *Config) supports(op verbs.Opcode) bool { return !slices.Contains(c.Unsupported, op) }

// suite is a Config with its defaults filled in.
type suite struct{ Config }

type topic struct {
	name  string
	tests []test
}

var datagramTopics = []topic{{"UD", udTests}, {"Lookup", lookupTests}, {"Multicast", multicastTests}, {"SRQDatagrams", udSRQTests}}

// TestProvider runs the suite.
func TestProvider(t *testing.T, cfg Config) {
	topics := []topic{
		{"Device", deviceTests},
		{"Data", dataTests},
		{"OneSided", oneSidedTests},
		{"Queue", queueTests},
		{"Notify", notifyTests},
		{"Error", errorTests},
		{"SRQ", srqTests},
		{"Invalidate", invalidateTests},
		{"Flush", flushTests},
		{"AtomicWrite", atomicWriteTests},
		{"Mapping", mappingTests},
		{"CM", cmTests},
		{"Lifetime", lifetimeTests},
		{"Many", manyTests},
	}
	if !cfg.NoDatagrams {
		topics = append(topics, datagramTopics...)
	}
	run(t, cfg, topics)
}

// TestDatagrams runs the part of the suite that is about datagrams.
func TestDatagrams(t *testing.T, cfg Config) { run(t, cfg, datagramTopics) }

// TestSegmentation runs the part of the suite that depends on the path MTU: what a message is cut into.
func TestSegmentation(t *testing.T, cfg Config) {
	run(t, cfg, []topic{
		{"Data", dataTests},
		{"OneSided", []test{{"ReadBothWays", testReadBothWays}, {"ReadOrder", testReadOrder}, {"ReadZeroLength", testReadZeroLength}}},
		{"SRQ", []test{{"Shared", testSRQShared}}},
		{"Invalidate", []test{{"Sizes", testInvalidateSizes}}},
	})
}

func run(t *testing.T, cfg Config, topics []topic) {
	if cfg.Connections == 0 {
		cfg.Connections = 300
	}
	if cfg.LocalErrors == nil {
		cfg.LocalErrors = []verbs.Status{verbs.LocProtErr}
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	s := &suite{cfg}
	for _, g := range topics {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				t.Run(c.name, func(t *testing.T) { c.f(s, t) })
			}
		})
	}
}

type test struct {
	name string
	f    func(s *suite, t *testing.T)
}
