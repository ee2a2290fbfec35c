package verbs

import "time"

// CQAttr says what a completion queue shall be able to do.
type CQAttr struct {
	// Depth is the number of completions the queue holds. One more is an
	// overrun: the queue and its queue pairs go to the error state.
	Depth int

	// Notify is called once for each Arm, when the next completion has been
	// added or the queue has failed (overrun, device gone). It may also come without
	// a completion. It may be nil for a queue that is only polled.
	Notify func()
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves completions into wc, oldest first, and returns their number.
	// Only 0 says that the queue was empty; fewer than len(wc) does not. Poll
	// never waits; a provider may use the call to look for work (read a
	// socket). Errors: ENOSPC after an overrun, ENODEV when the device is gone, net.ErrClosed.
	Poll(wc []WC) (n int, err error)

	// Arm asks for one Notify at the next completion. Completions already in
	// the queue do not count: poll again after Arm, before sleeping.
	Arm() error

	// Close fails while a queue pair uses the queue. No Notify is running
	// or will run once it returns.
	Close() error
}

// ArmPoller is a CQ of a provider that does by itself what a consumer does when it finds nothing, in one call instead of
// several: its calls are dear, since they leave Go, or it has to know that somebody looks again and again.
type ArmPoller interface {
	CQ

	// PollOrArm is Poll. With nothing there it looks on for spin, which the
	// provider may cut short; then, if arm is set, it is Arm, and Poll once more. armed tells
	// whether it came to that, whatever else is returned.
	PollOrArm(wc []WC, spin time.Duration, arm bool) (n int, armed bool, err error)
}

// Seater is a CQ of a provider at whose source of news a goroutine can wait instead of being woken by one that waits there.
type Seater interface {
	CQ

	// Seat returns the place, which several queues may share, or nil.
	Seat() Seat
}

// Seat is a place for one goroutine at a time, see [Waiter.WaitAt].
type Seat interface {
	// Take reserves the place, if it is free. It comes before the arming of what shall be heard of, so that the
	// provider does not have a goroutine of its own hear of it.
	Take() bool

	// Sit waits until done says so, or the place is no good any more. Meanwhile the provider's work is done on
	// the caller's goroutine: Notify of any queue may be called, so the caller holds no lock that handlers take.
	Sit(done func() bool)

	// Stand has Sit ask done again. Anybody may call it.
	Stand()

	// Leave gives the place up. It follows each Take that was successful.
	Leave()
}

// WC is a work completion. Of one that failed, only ID, Status, QPN and
// VendorErr are meaningful.
type WC struct {
	ID        uint64
	Status    Status
	Op        WCOpcode
	Flags     WCFlags
	ByteLen   uint32 // received bytes; for UD, the 40 bytes of the GRH included, whether there is one or not
	Imm       uint32
	QPN       uint32 // of this side
	VendorErr uint32

	// UD only.
	SrcQPN   uint32
	SLID     uint16 // InfiniBand link layer only, as SL and PathBits
	SL       uint8
	PathBits uint8
}

// WCFlags qualify a WC.
type WCFlags uint8

const (
	WCWithImm WCFlags = 1 << iota
	WCWithInv         // Imm is the key that was invalidated
	WCGRH             // UD: the first 40 bytes are a GRH; without, they are undefined
	WCGRHv4           // the GRH's last 20 bytes are an IPv4 header
)
