package verbs

// FlushLevel is how much memory a FLUSH is about: the selectivity level of IBTA annex A19.4.1.2, as in enum
// ib_selectivity_level.
type FlushLevel uint8

const (
	FlushRange FlushLevel = iota // [SendWR.RemoteAddr, SendWR.RemoteAddr + SendWR.FlushLength)
	FlushMR                      // all of the region of SendWR.RKey, whatever address and length say
)

// Persister is a [PD] of a device that makes memory persistent in software, when a FLUSH asks for it. A device
// that is no Persister knows how by itself.
type Persister interface {
	PD

	// RegPersistentMR is RegMR with the flag FlushPersistent. persist makes a range of mem persistent, which
	// lasts however long it takes: a FLUSH that the peer waits for is answered when it has returned, and fails with
	// RemOpErr if that is an error. It is called on a goroutine of the provider's, for several connections at a time, and
	// must not close what belongs to one of them. The region's Close waits for it.
	//
	// nil takes the provider's own way, where it has one: msync(2) with MS_SYNC. That does what it promises for
	// a shared mapping of a file, and nothing for a private one or for anonymous memory, without an error. RegMR with FlushPersistent takes
	// it too, and refuses memory of an [Arena], which is of the kind that nothing makes persistent.
	RegPersistentMR(mem []byte, access Access, persist func(mem []byte) error) (MR, error)
}
