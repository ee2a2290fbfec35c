//go:build !linux

package softroce

// populate is missing here.
var populate func(pages []byte, write bool) error
