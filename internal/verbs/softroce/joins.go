package softroce

import "github.com/go-rdma/rdma/internal/verbs/softroce/wire"

// joins tells whether packets that the kernel or a NIC cuts out of larger sends have arrived on this connection. Where
// they have, silence has other reasons, and packets that are sent one by one would only be slow, for ever.
type joins struct {
	psn     uint32 // of a packet that was sent between others of the same length
	watched bool   // it is not acknowledged yet, nor repeated
	proved  bool
}

func (j *joins) watch(psn uint32) {
	if !j.proved && !j.watched {
		j.psn, j.watched = psn, true
	}
}

// acknowledged takes it that all before psn has arrived.
func (j *joins) acknowledged(psn uint32) {
	if j.watched && wire.PSNDiff(psn, j.psn) > 0 {
		j.watched, j.proved = false, true
	}
}

// patience is how many timeouts in a row there are before packets go one by one.
func (j *joins) patience() uint {
	if j.proved {
		return 8 // the way may have changed
	}
	return 2
}
