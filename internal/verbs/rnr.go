package verbs

import "time"

// DefaultRNRTimer is for providers: the code of 0.64 ms. rdma_cm's default, 655.36 ms, makes
// a receiver that is late once wait for most of a second.
const DefaultRNRTimer = 12

// rnrTimers holds the RNR timer codes (IBTA 9.7.5.2.8) in units of 10 microseconds.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer is for providers: the time that an RNR timer code, of five bits, asks a requester to wait.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}
