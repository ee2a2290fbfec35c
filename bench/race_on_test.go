//go:build race

package main

const raceEnabled = true // its own memory would be counted
