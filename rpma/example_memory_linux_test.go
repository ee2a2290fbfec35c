package rpma_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"syscall"

	"github.com/go-rdma/rdma/rpma"
)

// Which devices are there, and what can they do?
func ExampleDevice() {
	devices, err := rpma.Devices()
	if err != nil {
		log.Print(err)
		return
	}
	for _, d := range devices {
		if d.Unusable != nil {
			log.Printf("%s: %v", d.Name, d.Unusable)
			continue
		}
		fmt.Printf("%s: FLUSH %v, ATOMIC WRITE %v, on-demand paging %v\n", d.Name, d.NativeFlush, d.NativeAtomicWrite, d.ODP)
	}
}

func ExamplePort() {
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		log.Print(err)
		return
	}
	for _, p := range device.Ports {
		for _, ip := range p.GIDs {
			if ip.IsLoopback() {
				fmt.Println(p.State, ip)
				return
			}
		}
	}
	// Output: ACTIVE 127.0.0.1
}

// A peer is closed when nothing of it is left, and says what is.
func ExamplePeer() {
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		log.Print(err)
		return
	}
	peer, err := rpma.NewPeer(device)
	if err != nil {
		log.Print(err)
		return
	}
	mr, err := peer.Alloc(4096, rpma.WriteDst)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(errors.Is(peer.Close(), syscall.EBUSY))
	fmt.Println(mr.Close(), peer.Close())
	// Output:
	// true
	// <nil> <nil>
}

// A region's descriptor is what a peer needs. It goes there over TLS, where the network is not trusted.
func ExampleMR() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	mr, err := e.peer.Alloc(1<<20, rpma.ReadSrc)
	if err != nil {
		log.Print(err)
		return
	}
	defer mr.Close()
	descriptor, err := mr.MarshalBinary()
	fmt.Println(mr.Len(), mr.Usage(), len(descriptor), err)
	// Output: 1048576 ReadSrc 21 <nil>
}

// The peer's side of it.
func ExampleRemoteMR() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	remote, err := rpma.ParseRemoteMR(e.this.PrivateData()) // padded, which it may be
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(remote.Size(), remote.CanFlush(rpma.Visibility), remote.CanFlush(rpma.Persistent))
	// Output: 4096 true false
}

// Ranges are values, and are checked when they are used.
func ExampleLocal() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	beyond := e.mr.Slice(4000, 1000)
	fmt.Println(beyond.Len())
	err = e.this.Do(context.Background(), rpma.Send(beyond))
	fmt.Println(errors.Is(err, fs.ErrInvalid))
	// Output:
	// 1000
	// true
}

func ExampleRemote() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	var none rpma.Remote // and no memory at all, as for a flush of what Local and Remote are zero of
	fmt.Println(e.remote.Slice(64, 8).Len(), none.Len())
	// Output: 8 0
}

func ExampleUsage() {
	u := rpma.WriteDst | rpma.FlushVisibility
	fmt.Println(u, u&rpma.ReadSrc != 0)
	// Output: WriteDst|FlushVisibility false
}

// Pages of a file on persistent memory are had in memory before a peer reads them.
func ExampleAdvice() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	if err := e.lent.Advise(0, e.lent.Len(), rpma.AdvicePrefetch); err != nil && !errors.Is(err, rpma.ErrNotSupported) {
		log.Print(err)
	}
}

// Operations are values, made of ranges.
func ExampleOp() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	copy(e.mr.Bytes(), "written once, and read back")
	ops := []rpma.Op{
		rpma.Write(e.remote.Slice(0, 27), e.mr.Slice(0, 27)),
		rpma.Read(e.mr.Slice(1000, 27), e.remote.Slice(0, 27)), // behind the write, on one connection
	}
	err = e.this.Do(context.Background(), ops...)
	fmt.Printf("%s %v\n", e.mr.Bytes()[1000:1027], err)
	// Output: written once, and read back <nil>
}

// Persistent is refused until the peer's program has said that it means something.
func ExampleFlushType() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	for _, t := range []rpma.FlushType{rpma.Visibility, rpma.Persistent} {
		err := e.this.Do(context.Background(), rpma.Flush(e.remote.Slice(0, 8), t))
		fmt.Println(t, err == nil)
	}
	// Output:
	// Visibility true
	// Persistent false
}

// What the ends tell each other of their hosts, a byte: over TLS, where the network is not trusted.
func ExamplePeerConfig() {
	b, err := rpma.PeerConfig{DirectWriteToPMem: true}.MarshalBinary()
	if err != nil {
		log.Print(err)
		return
	}
	var config rpma.PeerConfig
	err = config.UnmarshalBinary(b)
	fmt.Println(len(b), config.DirectWriteToPMem, err)
	// Output: 1 true <nil>
}

// One queue of receives serves all connections of a server.
func ExampleSRQ() {
	peer, endpoint, err := listening()
	if err != nil {
		log.Print(err)
		return
	}
	defer peer.Close()
	defer endpoint.Close()
	shared, err := peer.NewSRQ(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer shared.Close()
	mr, err := peer.Alloc(4096, rpma.RecvBuf|rpma.SendBuf)
	if err != nil {
		log.Print(err)
		return
	}
	defer mr.Close()
	ctx := context.Background()
	for i := range 3 {
		if err := shared.PostRecv(mr.Slice(i*64, 64), uint64(i)); err != nil {
			log.Print(err)
			return
		}
	}
	for range 3 {
		accepted := make(chan *rpma.Conn, 1)
		go func() {
			defer close(accepted)
			if request, err := endpoint.Accept(ctx, &rpma.ConnConfig{SRQ: shared}); err == nil {
				if c, err := request.Connect(ctx, nil); err == nil {
					accepted <- c
				}
			}
		}()
		client, err := peer.Dial(ctx, endpoint.Addr().String(), nil)
		if err != nil {
			log.Print(err)
			return
		}
		defer client.Close()
		server := <-accepted
		if server == nil {
			return
		}
		defer server.Close()
		if err := client.Do(ctx, rpma.Send(mr.Slice(1024, 5))); err != nil {
			log.Print(err)
			return
		}
		for wc, err := range shared.CQ().Completions(ctx) {
			fmt.Println(wc.ID, wc.Bytes, wc.QPNum == server.QPNum(), err)
			break
		}
	}
	// Output:
	// 0 5 true <nil>
	// 1 5 true <nil>
	// 2 5 true <nil>
}

// Receives may complete in the connections' own queues.
func ExampleSRQConfig() {
	peer, endpoint, err := listening()
	if err != nil {
		log.Print(err)
		return
	}
	defer peer.Close()
	defer endpoint.Close()
	shared, err := peer.NewSRQ(&rpma.SRQConfig{RQSize: 1000, RCQSize: -1})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(shared.CQ() == nil, shared.Close())
	// Output: true <nil>
}
