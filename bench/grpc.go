package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A call has a number in its message and as many bytes in the answer's.
const (
	grpcService = "rdma.bench.Bodies"
	grpcMethod  = "Get"
)

// bodies is what the server of that service is; it has no state.
type bodies interface{ get(n int) ([]byte, error) }

type ownBodies struct{}

func (ownBodies) get(n int) ([]byte, error) {
	if n > len(body) {
		return nil, status.Errorf(codes.InvalidArgument, "%d bytes, the most are %d", n, len(body))
	}
	return body[:n], nil
}

var bodiesDesc = grpc.ServiceDesc{
	ServiceName: grpcService,
	HandlerType: (*bodies)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: grpcMethod,
		Handler: func(srv any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in wrapperspb.UInt32Value
			if err := dec(&in); err != nil {
				return nil, err
			}
			b, err := srv.(bodies).get(int(in.GetValue()))
			if err != nil {
				return nil, err
			}
			return wrapperspb.Bytes(b), nil
		},
	}},
}

// serveGRPC serves until l is closed.
func serveGRPC(l net.Listener) {
	srv := grpc.NewServer()
	srv.RegisterService(&bodiesDesc, ownBodies{})
	_ = srv.Serve(l)
}

// grpcConn is a client with one connection.
type grpcConn struct{ *grpc.ClientConn }

func connectGRPC(_ cell, dial dialFunc) (requester, error) {
	c, err := grpc.NewClient("passthrough:///peer",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &grpcConn{c}, nil
}

func (c *grpcConn) close() { c.ClientConn.Close() }

func (c *grpcConn) get(ctx context.Context, size int, _ []byte, w *window) (int, error) {
	var out wrapperspb.BytesValue
	if err := c.Invoke(ctx, "/"+grpcService+"/"+grpcMethod, wrapperspb.UInt32(uint32(size)), &out); err != nil {
		return 0, err
	}
	w.came(len(out.GetValue()))
	return len(out.GetValue()), nil
}
