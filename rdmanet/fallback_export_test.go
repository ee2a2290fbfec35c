package rdmanet

import "time"

// ForgetDetours makes a test begin with nothing remembered.
func ForgetDetours() {
	detours.mu.Lock()
	defer detours.mu.Unlock()
	clear(detours.m)
}

// EndDetours lets the time pass for which RDMA is left alone.
func EndDetours() {
	detours.mu.Lock()
	defer detours.mu.Unlock()
	for _, d := range detours.m {
		d.until = time.Time{}
	}
}
