package pmem_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/go-rdma/rdma/rpma/pmem"
)

// A record that is there after a power failure. On a disk, as here, Persist calls msync(2).
func ExampleMapping() {
	dir, err := os.MkdirTemp("", "pmem")
	if err != nil {
		log.Print(err)
		return
	}
	defer os.RemoveAll(dir)
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Print(err)
		return
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		log.Print(err)
		return
	}
	m, err := pmem.Map(f, 0, 1<<20)
	if err != nil {
		log.Print(err)
		return
	}
	defer m.Close()
	n := copy(m.Bytes()[4096:], "record")
	if err := m.Persist(4096, n); err != nil {
		log.Print(err)
		return
	}
	b := make([]byte, n)
	_, err = f.ReadAt(b, 4096)
	fmt.Printf("%s %v\n", b, err)
	// Output: record <nil>
}
