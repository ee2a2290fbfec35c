// rcopy speaks what the rcopy of librdmacm's examples speaks, at either end, over package
// rdmanet: it copies a file to a server.
//
//	rcopy [-p port] -dir DIR              serves; files go below DIR, one client at a time
//	rcopy [-p port] FILE server[:NAME]    copies FILE
//
// Both ends print the SHA-256 of what they sent or received.
package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

type options struct {
	port   string
	bind   string
	dir    string
	once   bool
	buffer int
	limit  time.Duration
}

func main() { peer.Main("rcopy", run) }

func run(args []string) error {
	var o options
	fs := flag.NewFlagSet("rcopy", flag.ContinueOnError)
	fs.StringVar(&o.port, "p", "7427", "`port`")
	fs.StringVar(&o.bind, "b", "", "`address` to serve at")
	fs.StringVar(&o.dir, "dir", "", "serve, and keep files below this `directory`")
	fs.BoolVar(&o.once, "once", false, "serve one client")
	fs.IntVar(&o.buffer, "B", 0, "limit of the rings in bytes")
	fs.DurationVar(&o.limit, "limit", 5*time.Minute, "time for one file")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case o.dir != "" && fs.NArg() == 0:
		return serve(&o)
	case o.dir == "" && fs.NArg() == 2:
		server, name, found := cutAddress(fs.Arg(1))
		if !found {
			name = fs.Arg(0)
		}
		return copyFile(&o, fs.Arg(0), server, name)
	}
	return errors.New("usage: rcopy -dir DIR, or rcopy FILE server[:NAME]; an IPv6 address stands in brackets")
}

// cutAddress cuts server[:NAME]. Unlike the C program it knows IPv6 addresses, in brackets.
func cutAddress(s string) (server, name string, found bool) {
	if rest, ok := strings.CutPrefix(s, "["); ok {
		server, rest, _ = strings.Cut(rest, "]")
		name, found = strings.CutPrefix(rest, ":")
		return server, name, found
	}
	return strings.Cut(s, ":")
}

func report(what, path string, n int64, sum []byte, took time.Duration) {
	fmt.Printf("%s %s: %d bytes in %.2f s, %.1f MB/s, sha256 %x\n",
		what, path, n, took.Seconds(), float64(n)/1e6/took.Seconds(), sum)
}
