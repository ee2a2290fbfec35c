package ibcm

import "time"

// Duration is the time that a 5-bit timeout code stands for: 4.096 us * 2^code
// (IBTA 12.7.34), rounded as the kernels do: 2^(code-8) ms, never less than 1 ms.
func Duration(code uint8) time.Duration {
	return time.Millisecond << max(int(code&31)-8, 0)
}

// ACKTimeout is the local ACK timeout code for a path of the given packet
// lifetime code to a device of the given ACK delay code: the code of about
// twice the lifetime plus the delay.
func ACKTimeout(ackDelay, lifetime uint8) uint8 {
	a := lifetime + 1
	switch {
	case a >= ackDelay:
		if ackDelay >= a-1 {
			a++
		}
	case a >= ackDelay-1:
		a = ackDelay + 1
	default:
		a = ackDelay
	}
	return min(a, 31)
}
