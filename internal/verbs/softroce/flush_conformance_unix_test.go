//go:build unix

package softroce_test

import "github.com/go-rdma/rdma/internal/verbs/verbstest"

var persistentMemory = verbstest.MapFile
