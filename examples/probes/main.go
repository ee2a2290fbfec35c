// probes is a server on RDMA that can be probed by who speaks TCP, as the kubelet does (httpGet, tcpSocket).
//
// In the one shape TCP has health alone, on a listener of its own; port numbers of RDMA and TCP are different spaces, so the number may be the
// same. In the other (-fallback) one listener takes both, and so clients without RDMA are served as well.
//
// Whether the service can be reached by RDMA is what readiness asks: its handler makes a request to the service as a client would.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rdmanet"
)

func main() {
	fallback := flag.Bool("fallback", false, "one listener for both, and the service on TCP too")
	roles.Usage()
	roles.Main(newExample(*fallback))
}

func newExample(fallback bool) roles.Example {
	done := make(chan struct{})
	return roles.Example{
		Serve: func(ctx context.Context, _ io.Writer, addr string, ready func(string)) error {
			if fallback {
				return serveBoth(ctx, addr, ready, done)
			}
			return serveBeside(ctx, addr, ready, done)
		},
		Dial: func(ctx context.Context, out io.Writer, addr string) error {
			defer close(done)
			return probe(ctx, out, addr)
		},
	}
}

func service(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "at your service") }

// health is what probes ask. addr is the service's.
func health(addr string) *http.ServeMux {
	client := overRDMA()
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "alive") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // less than the probe's timeoutSeconds
		defer cancel()
		if _, err := get(ctx, client, "http://"+addr); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "ready")
	})
	return mux
}

// serveBeside has the service on RDMA and health on TCP, at one port number.
func serveBeside(ctx context.Context, addr string, ready func(string), done <-chan struct{}) error {
	l, err := rdmanet.Listen("rdma", addr)
	if err != nil {
		return err
	}
	probes, err := net.Listen("tcp", l.Addr().String()) // the same number, or any other
	if err != nil {
		l.Close()
		return err
	}
	return serve(ctx, ready, done, map[net.Listener]http.Handler{
		l:      http.HandlerFunc(service),
		probes: health(l.Addr().String()),
	})
}

// serveBoth has both on one listener.
func serveBoth(ctx context.Context, addr string, ready func(string), done <-chan struct{}) error {
	lc := &rdmanet.ListenConfig{Fallback: &net.ListenConfig{}}
	l, err := lc.Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	mux := health(l.Addr().String())
	mux.HandleFunc("/", service)
	return serve(ctx, ready, done, map[net.Listener]http.Handler{l: mux})
}

// serve serves until ctx ends, or done.
func serve(ctx context.Context, ready func(string), done <-chan struct{}, handlers map[net.Listener]http.Handler) error {
	var wg sync.WaitGroup
	failed := make(chan error, len(handlers))
	var servers []*http.Server
	var addr string
	for l, h := range handlers {
		addr = l.Addr().String()
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		servers = append(servers, s)
		wg.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	ready(addr)
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	case <-done:
	}
	for _, s := range servers {
		err = errors.Join(err, s.Close())
	}
	wg.Wait()
	return err
}

// probe is a kubelet, and then a client.
func probe(ctx context.Context, out io.Writer, addr string) error {
	tcp := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/livez", "/readyz"} {
		body, err := get(ctx, tcp, "http://"+addr+path)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "httpGet %s: %s\n", path, body)
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c.Close()
	fmt.Fprintln(out, "tcpSocket: connected")

	body, err := get(ctx, overRDMA(), "http://"+addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "client on RDMA: %s\n", body)
	if body, err = get(ctx, tcp, "http://"+addr); err != nil {
		body = err.Error()
	}
	fmt.Fprintf(out, "client on TCP: %s\n", body)
	return nil
}

// overRDMA is a client that makes a connection for each request.
func overRDMA() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       (&rdmanet.Dialer{}).DialContext,
		DisableKeepAlives: true,
	}}
}

func get(ctx context.Context, client *http.Client, rawURL string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rawURL, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err == nil && resp.StatusCode != http.StatusOK {
		err = &url.Error{Op: "GET", URL: rawURL, Err: errors.New(resp.Status)}
	}
	return string(body), err
}
