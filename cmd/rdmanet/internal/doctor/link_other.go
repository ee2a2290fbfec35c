//go:build !linux

package doctor

func pairedOutside(string) bool { return false }
