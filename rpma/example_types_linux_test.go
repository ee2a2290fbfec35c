package rpma_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rpma"
)

// ends are the two ends of a connection, of one peer in one process, and a region of each. The other end's is lent to this one.
type ends struct {
	peer        *rpma.Peer
	this, other *rpma.Conn
	mr, lent    *rpma.MR
	remote      rpma.RemoteMR // lent, as this end knows it
}

// connect makes them. The other end has receives posted, with the IDs 100 and 101.
func connect(config *rpma.ConnConfig) (*ends, error) {
	e := &ends{}
	if err := e.connect(config); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *ends) connect(config *rpma.ConnConfig) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		return err
	}
	if e.peer, err = rpma.NewPeer(device); err != nil {
		return err
	}
	if e.mr, err = e.peer.Alloc(4096, rpma.WriteSrc|rpma.ReadDst|rpma.SendBuf|rpma.RecvBuf); err != nil {
		return err
	}
	if e.lent, err = e.peer.Alloc(4096, rpma.WriteDst|rpma.ReadSrc|rpma.FlushVisibility|rpma.SendBuf|rpma.RecvBuf); err != nil {
		return err
	}
	descriptor, err := e.lent.MarshalBinary()
	if err != nil {
		return err
	}
	endpoint, err := e.peer.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer endpoint.Close()
	accepted := make(chan error, 1)
	go func() { accepted <- e.accept(ctx, endpoint, descriptor) }()
	e.this, err = e.peer.Dial(ctx, endpoint.Addr().String(), config)
	if err := errors.Join(err, <-accepted); err != nil {
		return err
	}
	e.remote, err = rpma.ParseRemoteMR(e.this.PrivateData())
	return err
}

// accept is the other end's part.
func (e *ends) accept(ctx context.Context, endpoint *rpma.Endpoint, descriptor []byte) error {
	request, err := endpoint.Accept(ctx, nil)
	if err != nil {
		return err
	}
	for id := range 2 {
		if err := request.PostRecv(e.lent.Slice(id*1024, 1024), uint64(100+id)); err != nil {
			return err
		}
	}
	e.other, err = request.Connect(ctx, descriptor)
	return err
}

// close closes what there is.
func (e *ends) close() {
	for _, c := range []*rpma.Conn{e.this, e.other} {
		if c != nil {
			c.Close()
		}
	}
	for _, m := range []*rpma.MR{e.mr, e.lent} {
		if m != nil {
			m.Close()
		}
	}
	if e.peer != nil {
		if err := e.peer.Close(); err != nil {
			log.Print(err)
		}
	}
}

func ExampleConn_Do() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	copy(e.mr.Bytes(), "record")
	err = e.this.Do(context.Background(),
		rpma.Write(e.remote.Slice(64, 6), e.mr.Slice(0, 6)),
		rpma.Flush(e.remote.Slice(64, 6), rpma.Visibility),
		rpma.AtomicWrite(e.remote.Slice(0, 8), [8]byte{6})) // how much there is, when it is there
	fmt.Printf("%s %d %v\n", e.lent.Bytes()[64:70], e.lent.Bytes()[0], err)
	// Output: record 6 <nil>
}

// A connection tells when it is over, and why.
func ExampleConn() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	e.other.Disconnect()
	<-e.this.Done()
	fmt.Println(e.this.Err() == io.EOF)
	// Output: true
}

// Many operations on their way: posted as there is room, and polled.
func ExampleCQ() {
	e, err := connect(&rpma.ConnConfig{SQSize: 16})
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	ctx := context.Background()
	done := 0
	poll := func() error {
		var wc [16]rpma.Completion
		n, err := e.this.CQ().Poll(wc[:])
		for i := range wc[:n] {
			err = errors.Join(err, wc[i].Err())
		}
		done += n
		return err
	}
	for i := 0; i < 1000; {
		n, err := e.this.Post(rpma.Read(e.mr.Slice(0, 64), e.remote.Slice(uint64(i%64)*64, 64)))
		i += n
		if errors.Is(err, rpma.ErrQueueFull) {
			if err = e.this.CQ().Wait(ctx); err == nil {
				err = poll()
			}
		}
		if err != nil {
			log.Print(err)
			return
		}
	}
	for done < 1000 {
		if err := e.this.CQ().Wait(ctx); err != nil {
			log.Print(err)
			return
		}
		if err := poll(); err != nil {
			log.Print(err)
			return
		}
	}
	fmt.Println(done, "reads")
	// Output: 1000 reads
}

// What was asked for comes back with its ID.
func ExampleCompletion() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	op := rpma.SendImm(e.mr.Slice(0, 10), 7)
	op.ID = 1
	if _, err := e.this.Post(op); err != nil {
		log.Print(err)
		return
	}
	for _, c := range []*rpma.Conn{e.this, e.other} {
		for wc, err := range c.CQ().Completions(context.Background()) {
			if err != nil {
				log.Print(err)
				return
			}
			fmt.Println(wc.ID, wc.Status, wc.Op, wc.Bytes, wc.Imm, wc.HasImm)
			break
		}
	}
	// Output:
	// 1 success send 10 0 false
	// 100 success recv 10 7 true
}

// An operation whose completion nobody wants to see unless it fails.
func ExampleFlags() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	quiet := rpma.Write(e.remote.Slice(0, 8), e.mr.Slice(0, 8))
	quiet.ID, quiet.Flags = 1, rpma.CompletionOnError
	loud := rpma.Write(e.remote.Slice(8, 8), e.mr.Slice(8, 8))
	loud.ID = 2
	if _, err := e.this.Post(quiet, loud); err != nil {
		log.Print(err)
		return
	}
	for wc, err := range e.this.CQ().Completions(context.Background()) {
		fmt.Println(wc.ID, err) // 1 was done before
		break
	}
	// Output: 2 <nil>
}

// What is asked of memory that is not lent so ends the connection.
func ExampleCompletionError() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	e.lent.Close() // this end does not know
	err = e.this.Do(context.Background(), rpma.Read(e.mr.Slice(0, 8), e.remote.Slice(0, 8)))
	var failed *rpma.CompletionError
	if errors.As(err, &failed) {
		fmt.Println(failed.Status, errors.Is(err, syscall.EACCES))
	}
	// Output: remote access error true
}

func ExampleStatus() {
	for _, s := range []rpma.Status{rpma.StatusSuccess, rpma.StatusFlushed, rpma.StatusRemoteAccess} {
		fmt.Println(int(s), s)
	}
	// Output:
	// 0 success
	// 5 work request flushed error
	// 10 remote access error
}

func ExampleOpCode() {
	fmt.Println(rpma.OpFlush, rpma.OpAtomicWrite, rpma.OpRecvWithImm)
	// Output: flush atomic write recv of write with immediate
}

// Errors wrap librpma's code and the cause; ranges are looked at before anything is sent.
func ExampleError() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	err = e.this.Do(context.Background(), rpma.Read(e.mr.Slice(0, 100), e.remote.Slice(4000, 100)))
	var failed *rpma.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Op, errors.Is(err, rpma.ErrInvalid), e.this.Err())
	}
	// Output: read true <nil>
}

func ExampleCode() {
	_, err := rpma.ParseRemoteMR(make([]byte, rpma.DescriptorSize)) // of no length, for no use
	fmt.Println(errors.Is(err, rpma.ErrInvalid))
	// Output: true
}

// How the queues are sized, and what else a connection can be told.
func ExampleConnConfig() {
	e, err := connect(&rpma.ConnConfig{
		SQSize:    128,
		RQSize:    128,
		RCQSize:   128,             // receives complete in a queue of their own
		KeepAlive: 2 * time.Second, // a dead peer is noticed earlier
	})
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	fmt.Println(e.this.RecvCQ() != nil)
	// Output: true
}

// Devices of which one knows nothing are told to emulate.
func ExampleNativeOps() {
	for _, native := range []rpma.NativeOps{rpma.NativeAuto, rpma.NativeNever} {
		e, err := connect(&rpma.ConnConfig{Native: native})
		if err != nil {
			log.Print(err)
			return
		}
		err = e.this.Do(context.Background(), rpma.Flush(e.remote.Slice(0, 8), rpma.Visibility))
		fmt.Println(e.this.Native(), err)
		e.close()
	}
	// Output:
	// true <nil>
	// false <nil>
}

// listening is an endpoint of a peer of its own.
func listening() (*rpma.Peer, *rpma.Endpoint, error) {
	device, err := rpma.LookupLocal("127.0.0.1")
	if err != nil {
		return nil, nil, err
	}
	peer, err := rpma.NewPeer(device)
	if err != nil {
		return nil, nil, err
	}
	endpoint, err := peer.Listen("127.0.0.1:0")
	if err != nil {
		peer.Close()
		return nil, nil, err
	}
	return peer, endpoint, nil
}

// A server that refuses who does not say the word.
func ExampleEndpoint() {
	peer, endpoint, err := listening()
	if err != nil {
		log.Print(err)
		return
	}
	defer peer.Close()
	defer endpoint.Close()
	ctx := context.Background()
	served := make(chan struct{})
	go func() {
		defer close(served)
		request, err := endpoint.Accept(ctx, nil)
		if err != nil {
			log.Print(err)
			return
		}
		if !bytes.HasPrefix(request.PrivateData(), []byte("friend\x00")) { // it is padded
			request.Reject([]byte("what is the word?"))
		}
	}()
	_, err = peer.Dial(ctx, endpoint.Addr().String(), nil)
	<-served
	var reject *rpma.RejectError
	if errors.As(err, &reject) {
		fmt.Printf("%s\n", bytes.TrimRight(reject.PrivateData, "\x00"))
	}
	// Output: what is the word?
}

// A request is told private data, and has receives posted before the first message can come.
func ExampleConnReq() {
	peer, endpoint, err := listening()
	if err != nil {
		log.Print(err)
		return
	}
	defer peer.Close()
	defer endpoint.Close()
	ctx := context.Background()
	served := make(chan struct{})
	go func() {
		defer close(served)
		request, err := endpoint.Accept(ctx, nil)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Printf("%s\n", bytes.TrimRight(request.PrivateData(), "\x00"))
		if conn, err := request.Connect(ctx, []byte("welcome")); err == nil {
			conn.Close()
		}
	}()
	request, err := peer.NewConnReq(ctx, endpoint.Addr().String(), nil)
	if err != nil {
		log.Print(err)
		return
	}
	conn, err := request.Connect(ctx, []byte("friend"))
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Printf("%s\n", bytes.TrimRight(conn.PrivateData(), "\x00"))
	<-served
	conn.Close()
	// Output:
	// friend
	// welcome
}

// A peer's refusal is a number of the specification: nobody listens, here.
func ExampleRejectError() {
	peer, endpoint, err := listening()
	if err != nil {
		log.Print(err)
		return
	}
	defer peer.Close()
	addr := endpoint.Addr().String()
	endpoint.Close()
	_, err = peer.Dial(context.Background(), addr, nil)
	var reject *rpma.RejectError
	if errors.As(err, &reject) {
		fmt.Println(reject.Reason, errors.Is(err, syscall.ECONNREFUSED))
	}
	// Output: 8 true
}

// Events are a view of what Done and Err tell.
func ExampleEvent() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	e.other.Disconnect()
	for {
		event, err := e.this.NextEvent(context.Background())
		if errors.Is(err, rpma.ErrNoEvent) {
			return
		}
		fmt.Println(event)
	}
	// Output:
	// established
	// closed
}

// Many receives, posted in one batch.
func ExampleRecv() {
	e, err := connect(nil)
	if err != nil {
		log.Print(err)
		return
	}
	defer e.close()
	var receives []rpma.Recv
	for i := range 8 {
		receives = append(receives, rpma.Recv{Dst: e.mr.Slice(i*64, 64), ID: uint64(i)})
	}
	n, err := e.this.PostRecvs(receives...)
	fmt.Println(n, err)
	// Output: 8 <nil>
}
