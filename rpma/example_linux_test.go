package rpma_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-rdma/rdma/rpma"
)

// A server lends memory, and a client writes and reads it. Both are in one process here, on the embedded device.
func Example() {
	if err := writeAndRead(); err != nil {
		log.Fatal(err)
	}
	// Output: hello, memory
}

func writeAndRead() error {
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		return err
	}
	peer, err := rpma.NewPeer(device)
	if err != nil {
		return err
	}
	defer peer.Close()
	ctx := context.Background()

	endpoint, err := peer.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	lent, err := peer.Alloc(4096, rpma.ReadSrc|rpma.WriteDst|rpma.FlushVisibility)
	if err != nil {
		return err
	}
	defer lent.Close()
	served := make(chan struct{})
	defer func() { <-served }()
	defer endpoint.Close()
	go func() {
		defer close(served)
		request, err := endpoint.Accept(ctx, nil)
		if err != nil {
			return
		}
		descriptor, _ := lent.MarshalBinary()
		conn, err := request.Connect(ctx, descriptor) // over TLS, if the network is not trusted
		if err != nil {
			return
		}
		<-conn.Done()
		conn.Close()
	}()

	conn, err := peer.Dial(ctx, endpoint.Addr().String(), nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	remote, err := rpma.ParseRemoteMR(conn.PrivateData())
	if err != nil {
		return err
	}
	own, err := peer.Alloc(64, rpma.WriteSrc|rpma.ReadDst)
	if err != nil {
		return err
	}
	defer own.Close()
	n := copy(own.Bytes(), "hello, memory")
	err = conn.Do(ctx,
		rpma.Write(remote.Slice(100, n), own.Slice(0, n)),
		rpma.Flush(remote.Slice(100, n), rpma.Visibility),
		rpma.Read(own.Slice(32, n), remote.Slice(100, n)))
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", own.Bytes()[32:32+n])
	return nil
}
