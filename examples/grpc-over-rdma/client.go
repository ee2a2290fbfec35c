package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/go-rdma/rdma/examples/grpc-over-rdma/calls"
	"github.com/go-rdma/rdma/rdmanet"
)

// client is a connection to a server, and what carries it.
type client struct {
	*grpc.ClientConn
	calls.CallsClient
	carrier atomic.Pointer[rdmanet.Conn] // the latest
}

// dial names the server; the connection is made by the first call.
func dial(addr, certs string, opts ...grpc.DialOption) (*client, error) {
	creds, err := transport(certs, "client")
	if err != nil {
		return nil, err
	}
	c := &client{}
	dialer := &rdmanet.Dialer{Timeout: 10 * time.Second} // &net.Dialer{...} on TCP
	// passthrough leaves names to the dialer, which knows which of their addresses RDMA reaches.
	c.ClientConn, err = grpc.NewClient("passthrough:///"+addr, append(opts,
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "rdma", addr)
			if err != nil {
				return nil, err
			}
			if r, ok := rdmanet.Unwrap(conn); ok {
				c.carrier.Store(r)
			}
			return conn, nil
		}),
		grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
	)...)
	if err != nil {
		return nil, err
	}
	c.CallsClient = calls.NewCallsClient(c.ClientConn)
	return c, nil
}

// call makes calls of each kind, which move size bytes each way, with a pause before the last one, and says what came of them.
func call(ctx context.Context, addr, certs string, size int64, idle time.Duration) (err error) {
	c, err := dial(addr, certs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"unary", c.unary},
		{"client stream", func(ctx context.Context) (string, error) { return c.upload(ctx, size) }},
		{"server stream", func(ctx context.Context) (string, error) { return c.download(ctx, size) }},
		{"both streams", c.talk},
		{"deadline", c.deadline},
		{"cancellation", c.cancel},
		{"keep-alive", func(ctx context.Context) (string, error) { return c.idle(ctx, idle) }},
	} {
		// Without a deadline a call lasts for as long as the server does.
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		said, err := step.do(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("  %-14s %s\n", step.name+":", said)
	}
	if r := c.carrier.Load(); r != nil {
		s := r.Stats()
		fmt.Printf("  carried by RDMA: provider %s, device %s, %v -> %v\n", s.Provider, s.Device, r.LocalAddr(), r.RemoteAddr())
	} else {
		fmt.Println("  NOT carried by RDMA")
	}
	return nil
}

func (c *client) unary(ctx context.Context) (string, error) {
	data := []byte("a message")
	d, err := c.Sum(ctx, &calls.Chunk{Data: data})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	if err := check(d, sum[:], len(data)); err != nil {
		return "", err
	}
	if d.GetClient() != "" {
		return fmt.Sprintf("the server answered %q", d.GetClient()), nil
	}
	return "the server answered a client without a name", nil
}

func check(d *calls.Digest, sum []byte, n int) error {
	if d.GetBytes() != uint64(n) || !bytes.Equal(d.GetSha256(), sum) {
		return fmt.Errorf("the server got %d bytes with the sum %x: it was sent %d with %x", d.GetBytes(), d.GetSha256(), n, sum)
	}
	return nil
}

func (c *client) upload(ctx context.Context, size int64) (string, error) {
	start := time.Now()
	stream, err := c.Upload(ctx)
	if err != nil {
		return "", err
	}
	random, hash := rand.NewChaCha8(newSeed()), sha256.New()
	for left := size; left > 0; {
		data := make([]byte, min(left, chunkSize)) // Send may still need the last one
		_, _ = random.Read(data)
		hash.Write(data)
		if err := stream.Send(&calls.Chunk{Data: data}); err != nil {
			if errors.Is(err, io.EOF) { // the server has ended the call, CloseAndRecv says why
				break
			}
			return "", err
		}
		left -= int64(len(data))
	}
	d, err := stream.CloseAndRecv()
	if err != nil {
		return "", err
	}
	if err := check(d, hash.Sum(nil), int(size)); err != nil {
		return "", err
	}
	return moved(size, start), nil
}

func (c *client) download(ctx context.Context, size int64) (string, error) {
	start, seed := time.Now(), newSeed()
	stream, err := c.Download(ctx, &calls.Wanted{Bytes: uint64(size), Seed: seed[:]})
	if err != nil {
		return "", err
	}
	random, n := rand.NewChaCha8(seed), int64(0)
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("after %d bytes: %w", n, err)
		}
		want := make([]byte, len(chunk.GetData()))
		_, _ = random.Read(want)
		if !bytes.Equal(chunk.GetData(), want) {
			return "", fmt.Errorf("wrong data among the %d bytes after %d", len(want), n)
		}
		n += int64(len(want))
	}
	if n != size {
		return "", fmt.Errorf("%d bytes came of %d", n, size)
	}
	return moved(size, start), nil
}

func newSeed() (seed [32]byte) {
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	return seed
}

func moved(size int64, start time.Time) string {
	took := time.Since(start)
	return fmt.Sprintf("%.1f MiB in %s, every byte is right", float64(size)/(1<<20), took.Round(time.Millisecond))
}

func (c *client) talk(ctx context.Context) (string, error) {
	stream, err := c.Talk(ctx)
	if err != nil {
		return "", err
	}
	const rounds = 1000
	start := time.Now()
	for i := range rounds {
		data := fmt.Appendf(nil, "message %d", i)
		if err := stream.Send(&calls.Chunk{Data: data}); err != nil {
			return "", err
		}
		d, err := stream.Recv()
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(data)
		if err := check(d, sum[:], len(data)); err != nil {
			return "", err
		}
	}
	took := time.Since(start)
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("after the last message: %v instead of the end", status.Convert(err))
	}
	return fmt.Sprintf("%d messages, each answered before the next, in %s", rounds, took.Round(time.Millisecond)), nil
}

// deadline makes a call that takes longer than there is time for.
func (c *client) deadline(ctx context.Context) (string, error) {
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	return c.cutShort(ctx, short, codes.DeadlineExceeded, func(*calls.Waits) {})
}

// cancel ends a call that the server is at.
func (c *client) cancel(ctx context.Context) (string, error) {
	cancelable, cancel := context.WithCancel(ctx)
	defer cancel()
	return c.cutShort(ctx, cancelable, codes.Canceled, func(w *calls.Waits) {
		if w.GetWaiting() > 0 {
			cancel()
		}
	})
}

// cutShort makes a call that ends with callCtx, in the way that want says, and waits until the server knows of it. It shows to
// see what the server tells in the meantime.
func (c *client) cutShort(ctx, callCtx context.Context, want codes.Code, see func(*calls.Waits)) (string, error) {
	ctx, cancel := context.WithCancel(ctx) // which ends the watch
	defer cancel()
	watch, err := c.Watch(ctx, &calls.Nothing{})
	if err != nil {
		return "", err
	}
	first, err := watch.Recv()
	if err != nil {
		return "", err
	}
	start := time.Now()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Wait(callCtx, &calls.Span{Milliseconds: 3_600_000})
		ended <- err
	}()
	for {
		w, err := watch.Recv()
		if err != nil {
			return "", err
		}
		see(w)
		if w.GetPastDeadline()+w.GetCanceled() > first.GetPastDeadline()+first.GetCanceled() {
			break
		}
	}
	if err := <-ended; status.Code(err) != want {
		return "", fmt.Errorf("the call ended with %v instead of %v", status.Convert(err), want)
	}
	return fmt.Sprintf("a call of an hour ended after %s, at the server too", time.Since(start).Round(time.Millisecond)), nil
}

// idle does nothing for a while, in which the server asks whether the client lives, and finds the connection as it was.
func (c *client) idle(ctx context.Context, pause time.Duration) (string, error) {
	before, start := c.carrier.Load(), time.Now()
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if _, err := c.unary(ctx); err != nil {
		return "", err
	}
	if c.carrier.Load() != before {
		return "", errors.New("an idle connection did not last")
	}
	return fmt.Sprintf("the same connection after %s without calls", time.Since(start).Round(100*time.Millisecond)), nil
}
