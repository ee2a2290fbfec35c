package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/go-rdma/rdma/examples/grpc-over-rdma/calls"
	"github.com/go-rdma/rdma/rdmanet"
)

// serve serves until ctx ends.
func serve(ctx context.Context, addr, certs string) error {
	creds, err := transport(certs, "server")
	if err != nil {
		return err
	}
	l, err := rdmanet.Listen("rdma", addr) // net.Listen("tcp", addr) on TCP
	if err != nil {
		return err
	}
	srv := newServer(creds)
	fmt.Printf("serving at %s\n", l.Addr())

	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	// Calls that do not end by themselves are ended.
	late := time.AfterFunc(3*time.Second, srv.Stop)
	defer late.Stop()
	srv.GracefulStop()
	return <-served
}

// newServer asks a client that is silent whether it lives, as gRPC does on any network: every
// second, so that the demo shows it, where 15 s would do.
func newServer(creds credentials.TransportCredentials) *grpc.Server {
	srv := grpc.NewServer(
		grpc.Creds(creds),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Second, Timeout: 2 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	calls.RegisterCallsServer(srv, &server{changed: make(chan struct{})})
	return srv
}

type server struct {
	calls.UnimplementedCallsServer

	mu      sync.Mutex
	waits   calls.Waits   // read and written under mu, field by field
	changed chan struct{} // closed when waits changes, and then another one
}

func (s *server) Sum(ctx context.Context, c *calls.Chunk) (*calls.Digest, error) {
	sum := sha256.Sum256(c.GetData())
	return &calls.Digest{Bytes: uint64(len(c.GetData())), Sha256: sum[:], Client: clientName(ctx)}, nil
}

// clientName is the name in the certificate that the client has shown, if it has.
func clientName(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return ""
	}
	return info.State.VerifiedChains[0][0].Subject.CommonName
}

func (s *server) Upload(stream grpc.ClientStreamingServer[calls.Chunk, calls.Digest]) error {
	hash, n := sha256.New(), uint64(0)
	for {
		c, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&calls.Digest{Bytes: n, Sha256: hash.Sum(nil), Client: clientName(stream.Context())})
		}
		if err != nil {
			return err
		}
		hash.Write(c.GetData())
		n += uint64(len(c.GetData()))
	}
}

// chunkSize is below the 4 MiB that grpc-go takes for a message.
const chunkSize = 256 << 10

func (s *server) Download(w *calls.Wanted, stream grpc.ServerStreamingServer[calls.Chunk]) error {
	if len(w.GetSeed()) != 32 {
		return status.Errorf(codes.InvalidArgument, "a seed of %d bytes: 32 are needed", len(w.GetSeed()))
	}
	random := rand.NewChaCha8([32]byte(w.GetSeed()))
	for left := w.GetBytes(); left > 0; {
		data := make([]byte, min(left, chunkSize)) // not the last one, which may still be on its way
		_, _ = random.Read(data)
		if err := stream.Send(&calls.Chunk{Data: data}); err != nil {
			return err
		}
		left -= uint64(len(data))
	}
	return nil
}

func (s *server) Talk(stream grpc.BidiStreamingServer[calls.Chunk, calls.Digest]) error {
	for {
		c, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d, err := s.Sum(stream.Context(), c)
		if err != nil {
			return err
		}
		if err := stream.Send(d); err != nil {
			return err
		}
	}
}

func (s *server) Wait(ctx context.Context, span *calls.Span) (*calls.Waits, error) {
	s.change(func(w *calls.Waits) { w.Waiting++ })
	timer := time.NewTimer(time.Duration(min(span.GetMilliseconds(), 3_600_000)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		s.change(func(w *calls.Waits) { w.Waiting--; w.Finished++ })
		w, _ := s.state()
		return w, nil
	case <-ctx.Done():
	}
	s.change(func(w *calls.Waits) {
		w.Waiting--
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			w.PastDeadline++
		} else {
			w.Canceled++
		}
	})
	return nil, status.FromContextError(ctx.Err()).Err()
}

func (s *server) Watch(_ *calls.Nothing, stream grpc.ServerStreamingServer[calls.Waits]) error {
	for {
		w, changed := s.state()
		if err := stream.Send(w); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

func (s *server) change(f func(*calls.Waits)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.waits)
	close(s.changed)
	s.changed = make(chan struct{})
}

// state is a copy of what is now, and tells when it is not any longer.
func (s *server) state() (*calls.Waits, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &calls.Waits{
		Waiting: s.waits.Waiting, Finished: s.waits.Finished, PastDeadline: s.waits.PastDeadline, Canceled: s.waits.Canceled,
	}, s.changed
}
