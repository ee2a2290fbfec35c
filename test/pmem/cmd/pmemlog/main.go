// Command pmemlog appends records to a mapped file and says which of them are persistent. With -check it
// counts those that are in the file, as after a power failure.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/rpma/pmem"
)

// A record is its number and the checksum of that. Each is in a page of its own, which is a hole of the file before.
const (
	distance = 4096
	length   = 8 + sha256.Size
	records  = 512 // 2 MiB, which is what a device-dax maps at least
)

func record(i int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(i)+1)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

func main() {
	name := flag.String("file", "", "file to map")
	check := flag.Bool("check", false, "count the records")
	n := flag.Int("n", 100, "records to append and make persistent")
	more := flag.Int("more", 1, "records to append then, without making them persistent")
	plain := flag.Bool("plain", false, "map without MAP_SYNC, and make nothing persistent but in the caches")
	flag.Parse()
	if *n+*more > records {
		log.Fatalf("no more than %d records", records)
	}
	if *check {
		count(*name)
		return
	}
	f, err := os.OpenFile(*name, os.O_RDWR|os.O_CREATE, 0o600)
	try(err)
	info, err := f.Stat()
	try(err)
	if info.Mode().IsRegular() {
		try(f.Truncate(records * distance))
		try(f.Sync())
		dir, err := os.Open(filepath.Dir(*name))
		try(err)
		try(dir.Sync()) // the name
	}

	var mem []byte
	persist := func(int, int) error { return nil }
	if *plain {
		mem, err = unix.Mmap(int(f.Fd()), 0, records*distance, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		try(err)
	} else {
		m, err := pmem.Map(f, 0, records*distance)
		try(err)
		fmt.Println(m)
		mem, persist = m.Bytes(), m.Persist
	}
	for i := range *n {
		copy(mem[i*distance:], record(i))
		try(persist(i*distance, length))
	}
	fmt.Println("persistent:", *n)
	for i := *n; i < *n+*more; i++ {
		copy(mem[i*distance:], record(i))
	}
	fmt.Println("stored:", *more)
	time.Sleep(time.Hour) // for somebody to pull the plug
}

// count prints how many records are in the file, and how many of them from the first one on without a gap.
func count(name string) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	try(err)
	m, err := pmem.Map(f, 0, records*distance) // a device-dax cannot be read otherwise
	try(err)
	var whole, first int
	for i := range records {
		b := m.Bytes()[i*distance : (i+1)*distance]
		switch {
		case bytes.Equal(b[:length], record(i)):
			whole++
			if first == i {
				first++
			}
		case !bytes.Equal(b, make([]byte, distance)):
			log.Fatalf("record %d is neither there nor missing: %x", i, b[:length])
		}
	}
	fmt.Printf("records: %d, from the first on: %d\n", whole, first)
}

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
