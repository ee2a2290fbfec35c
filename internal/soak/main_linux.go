package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-rdma/rdma/internal/testnet"
)

// Bounds of what is waited for. They are generous: the machine may be busy.
const (
	dialSlack = 5 * time.Second
	// talkTime is for a talk: the transport gives up after 17 s, keep-alive after 20.
	talkTime = 60 * time.Second
	restTime = 30 * time.Second
)

// dialTime is for a dial.
var dialTime = 10 * time.Second

// options of a run.
type options struct {
	seed    uint64
	time    time.Duration
	devices []string
	peers   int
	addr    string
	clock   bool
	verbose bool
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "peer" {
		if strings.Contains(os.Args[2], "rdmacore") {
			kept.files, kept.goroutines = 8, 8
			// A request that a backlog had no room for, of a process that was stopped or has much to accept, is repeated by rdma_cm after 6.1 s, and so on.
			dialTime = 45 * time.Second
		}
		if err := runPeer(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "soak: peer:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	var devices string
	ownNet := true
	flag.Uint64Var(&o.seed, "seed", 0, "of what is done; 0: another one each time")
	flag.DurationVar(&o.time, "time", 2*time.Minute, "how long it goes on")
	flag.StringVar(&devices, "device", "softroce,shm", "devices, each of which gets processes of its own")
	flag.IntVar(&o.peers, "peers", 4, "processes for each device")
	flag.StringVar(&o.addr, "addr", "", "the one address of all processes; empty: each gets one, which goes and comes back")
	flag.BoolVar(&ownNet, "net", true, "make a network for this run alone")
	flag.BoolVar(&o.clock, "clock", false, "set the system's clock back and forth: in a guest only")
	flag.BoolVar(&o.verbose, "v", false, "tell what is done")
	flag.Parse()
	if flag.NArg() > 0 || o.peers < 2 {
		flag.Usage()
		os.Exit(2)
	}
	o.devices = strings.Split(devices, ",")
	if ownNet {
		testnet.Main()
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if err := soak(&o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}
