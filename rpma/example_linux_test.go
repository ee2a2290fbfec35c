package rpma_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-rdma/rdma/rpma"
)

// A server lends memory, and a client writes and reads it. Both are in one process here, on the embedded device.
func Example() {
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	peer, err := rpma.NewPeer(device)
	if err != nil {
		log.Fatal(err)
	}
	defer peer.Close()
	ctx := context.Background()

	endpoint, err := peer.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer endpoint.Close()
	lent, err := peer.Alloc(4096, rpma.ReadSrc|rpma.WriteDst|rpma.FlushVisibility)
	if err != nil {
		log.Fatal(err)
	}
	defer lent.Close()
	served := make(chan struct{})
	defer func() { <-served }()
	go func() {
		defer close(served)
		request, err := endpoint.Accept(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		descriptor, _ := lent.MarshalBinary()
		conn, err := request.Connect(ctx, descriptor) // over TLS, if the network is not trusted
		if err != nil {
			log.Fatal(err)
		}
		<-conn.Done()
		conn.Close()
	}()

	conn, err := peer.Dial(ctx, endpoint.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	remote, err := rpma.ParseRemoteMR(conn.PrivateData())
	if err != nil {
		log.Fatal(err)
	}
	own, err := peer.Alloc(64, rpma.WriteSrc|rpma.ReadDst)
	if err != nil {
		log.Fatal(err)
	}
	defer own.Close()
	n := copy(own.Bytes(), "hello, memory")
	err = conn.Do(ctx,
		rpma.Write(remote.Slice(100, n), own.Slice(0, n)),
		rpma.Flush(remote.Slice(100, n), rpma.Visibility),
		rpma.Read(own.Slice(32, n), remote.Slice(100, n)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", own.Bytes()[32:32+n])
	// Output: hello, memory
}
