//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "soak: processes are stopped and killed, and networks made, on Linux only")
	os.Exit(2)
}
