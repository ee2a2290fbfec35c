//go:build !unix

package softroce_test

import "testing"

var persistentMemory func(t testing.TB, size int) []byte
