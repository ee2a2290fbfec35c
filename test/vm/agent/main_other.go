//go:build !linux

// Command agent is the first program of a Linux guest.
package main

func main() { panic("the agent runs in a Linux guest") }
