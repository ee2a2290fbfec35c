package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v3orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	v3orcaservice "github.com/cncf/xds/go/xds/service/orca/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"

	"github.com/go-rdma/rdma/rdmanet"
)

// TestInterop runs the cases by which implementations of gRPC are held against each other, as grpc-go's client has them and its
// server answers them. A case that fails ends the program, with a line that says why.
func TestInterop(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, listen string
		certs        string
	}{
		{"plain", "127.0.0.1:0", ""},
		{"TLS", "[::1]:0", certs(t)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr, _ := start(t, "interop server", tt.listen, tt.certs)
			c, err := dial(addr, tt.certs,
				// The cases of load reports need it. It sends everything to one server, as the default does.
				grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`))
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			for name, do := range interopCases {
				t.Run(name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					do(ctx, c.ClientConn)
				})
			}
			t.Run("DoSoakTest", func(t *testing.T) { soak(t, c, addr, tt.certs) })
			require.NotNil(t, c.carrier.Load())
			require.NotZero(t, c.carrier.Load().Stats().BytesWritten)
			require.Equal(t, provider(), c.carrier.Load().Stats().Provider)
		})
	}
}

// stub makes a case of calls one of connections.
func stub(do func(context.Context, testgrpc.TestServiceClient)) func(context.Context, *grpc.ClientConn) {
	return func(ctx context.Context, cc *grpc.ClientConn) { do(ctx, testgrpc.NewTestServiceClient(cc)) }
}

func stubWith(do func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)) func(context.Context, *grpc.ClientConn) {
	return stub(func(ctx context.Context, tc testgrpc.TestServiceClient) { do(ctx, tc) })
}

var interopCases = map[string]func(context.Context, *grpc.ClientConn){
	"DoEmptyUnaryCall":           stubWith(interop.DoEmptyUnaryCall),
	"DoLargeUnaryCall":           stubWith(interop.DoLargeUnaryCall),
	"DoClientStreaming":          stubWith(interop.DoClientStreaming),
	"DoServerStreaming":          stubWith(interop.DoServerStreaming),
	"DoPingPong":                 stubWith(interop.DoPingPong),
	"DoEmptyStream":              stubWith(interop.DoEmptyStream),
	"DoTimeoutOnSleepingServer":  stubWith(interop.DoTimeoutOnSleepingServer),
	"DoCancelAfterBegin":         stubWith(interop.DoCancelAfterBegin),
	"DoCancelAfterFirstResponse": stubWith(interop.DoCancelAfterFirstResponse),
	"DoCustomMetadata":           stubWith(interop.DoCustomMetadata),
	"DoStatusCodeAndMessage":     stubWith(interop.DoStatusCodeAndMessage),
	"DoSpecialStatusMessage":     stubWith(interop.DoSpecialStatusMessage),
	"DoUnimplementedService": func(ctx context.Context, cc *grpc.ClientConn) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
	},
	"DoUnimplementedMethod": interop.DoUnimplementedMethod,
	"DoPickFirstUnary":      stub(interop.DoPickFirstUnary),
	"DoORCAPerRPCTest":      stub(interop.DoORCAPerRPCTest),
	"DoORCAOOBTest":         stub(interop.DoORCAOOBTest),
}

// soak makes large calls on one connection and then each on one of its own.
func soak(t *testing.T, c *client, addr, certs string) {
	for name, channel := range map[string]func() (*grpc.ClientConn, func()){
		"rpc_soak": func() (*grpc.ClientConn, func()) { return c.ClientConn, func() {} },
		"channel_soak": func() (*grpc.ClientConn, func()) {
			c, err := dial(addr, certs)
			if err != nil {
				panic(err) // not in the test's goroutine
			}
			return c.ClientConn, func() { c.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			iterations := 10
			if long {
				iterations = 1000
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			interop.DoSoakTest(ctx, interop.SoakTestConfig{
				RequestSize: 271828, ResponseSize: 314159, // as the client has them by default
				PerIterationMaxAcceptableLatency: 30 * time.Second, // a busy machine is no fault
				OverallTimeout:                   time.Minute,
				ServerAddr:                       addr,
				NumWorkers:                       2,
				Iterations:                       iterations,
				ChannelForTest:                   channel,
			})
		})
	}
}

// cloudCases need credentials of a cloud, or its machines.
var cloudCases = []string{
	"DoComputeEngineCreds", "DoServiceAccountCreds", "DoJWTTokenCreds", "DoOauth2TokenCreds", "DoPerRPCCreds",
	"DoGoogleDefaultCredentials", "DoComputeEngineChannelCredentials",
}

// TestInteropIsWhole: package interop has no case that is not known here.
func TestInteropIsWhole(t *testing.T) {
	file, _ := runtime.FuncForPC(reflect.ValueOf(interop.DoEmptyUnaryCall).Pointer()).FileLine(
		reflect.ValueOf(interop.DoEmptyUnaryCall).Pointer())
	files, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.go"))
	require.NoError(t, err)
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Do") {
				found = append(found, fn.Name.Name)
			}
		}
	}
	known := append(slices.Collect(maps.Keys(interopCases)), cloudCases...)
	require.ElementsMatch(t, append(known, "DoSoakTest"), found)
}

// interopServer is grpc-go's, on rdmanet.
func interopServer(addr, certs string) {
	creds, err := transport(certs, "server")
	if err != nil {
		panic(err)
	}
	l, err := rdmanet.Listen("rdma", addr)
	if err != nil {
		panic(err)
	}
	metrics := orca.NewServerMetricsRecorder()
	srv := grpc.NewServer(grpc.Creds(creds), orca.CallMetricsServerOption(nil))
	testgrpc.RegisterTestServiceServer(srv, &testServer{interop.NewTestServer(interop.NewTestServerOptions{MetricsRecorder: metrics})})
	v3orcaservice.RegisterOpenRcaServiceServer(srv, &loadReports{metrics: metrics})
	fmt.Println("serving at", l.Addr())
	go func() {
		<-untilStdinEnds(context.Background()).Done() // the tests have ended, in whatever way
		os.Exit(0)
	}()
	panic(srv.Serve(l))
}

// testServer is grpc-go's with a name, which DoPickFirstUnary asks for and grpc-go has only in its servers for xDS.
type testServer struct{ testgrpc.TestServiceServer }

func (s *testServer) UnaryCall(ctx context.Context, req *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	resp, err := s.TestServiceServer.UnaryCall(ctx, req)
	if err == nil && req.GetFillServerId() {
		resp.ServerId = fmt.Sprint("process ", os.Getpid())
	}
	return resp, err
}

// loadReports is the service behind DoORCAOOBTest. Package orca's own reports no more often than every 30 s, which is
// as long as the test waits; what lifts that is internal to grpc-go.
type loadReports struct {
	v3orcaservice.UnimplementedOpenRcaServiceServer
	metrics orca.ServerMetricsProvider
}

func (s *loadReports) StreamCoreMetrics(req *v3orcaservice.OrcaLoadReportRequest, stream v3orcaservice.OpenRcaService_StreamCoreMetricsServer) error {
	tick := time.NewTicker(max(req.GetReportInterval().AsDuration(), 100*time.Millisecond))
	defer tick.Stop()
	for {
		m := s.metrics.ServerMetrics()
		report := &v3orcapb.OrcaLoadReport{
			CpuUtilization: max(m.CPUUtilization, 0), MemUtilization: max(m.MemUtilization, 0), Utilization: m.Utilization, // -1: not set
		}
		if err := stream.Send(report); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return nil
		}
	}
}
