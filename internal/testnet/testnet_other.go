//go:build !linux

package testnet

// Main does nothing: other systems have no networks of a process's own.
func Main() {}
