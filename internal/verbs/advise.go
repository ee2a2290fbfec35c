package verbs

// Advice says what will be done with memory soon, as enum ibv_advise_mr_advice.
type Advice uint8

const (
	AdvicePrefetch Advice = iota
	AdvicePrefetchWrite
	AdvicePrefetchNoFault
)

// Adviser is an [MR] of a device that can make memory ready before it is accessed (ibv_advise_mr(3)).
type Adviser interface {
	MR
	// Advise is about [off, off+n) of the region. What is not possible gives errors.ErrUnsupported.
	Advise(off, n int, a Advice) error
}
