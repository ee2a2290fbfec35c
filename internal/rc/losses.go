package rc

import "time"

// losses weighs what spins cost that lose the processor to other programs against what the others save. Who spins and lets others run
// is back after their turns, of milliseconds; who sleeps and is woken gets the processor at once. Where losses cost more, spins pause.
type losses struct {
	debt  int64 // lost, less what was saved since
	pause int64 // the last one's length, 0: paid for since
	until int64 // its end, or 0
}

const (
	lossCredit = int64(4 * time.Millisecond) // a loss or two: they happen
	pauseMin   = int64(8 * time.Millisecond)
	pauseMax   = int64(time.Second)

	usualSaving = int64(20 * time.Microsecond) // of a wait that spins beside one that parks, where that is not known
	savingMax   = int64(50 * time.Microsecond)
)

// lost takes how long the one who spun was without the processor.
func (l *losses) lost(now, d int64) {
	if l.debt += d; l.debt <= lossCredit {
		return
	}
	l.debt = lossCredit // after the pause one loss is enough
	l.pause = min(max(2*l.pause, pauseMin), pauseMax)
	l.until = now + l.pause
}

// saved takes what a wait took that spun, and takes otherwise, or 0.
func (l *losses) saved(took, otherwise int64) {
	if l.debt == 0 {
		return
	}
	d := usualSaving
	if otherwise > 0 {
		d = min(max(0, otherwise-took), savingMax)
	}
	if l.debt = max(0, l.debt-d); l.debt == 0 {
		l.pause, l.until = 0, 0
	}
}

// paused tells whether spins pause.
func (l *losses) paused() bool { return l.until != 0 && now() < l.until }
