// reverse-proxy has clients on TCP and a back end on RDMA: httputil.ReverseProxy between them, with a dialer of package rdmanet. What is upgraded
// to another protocol, as WebSockets are, goes through it too.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rdmanet"
)

func main() { roles.Main(newExample()) }

func newExample() roles.Example {
	done := make(chan struct{})
	return roles.Example{
		Serve: func(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
			return backEnd(ctx, out, addr, ready, done)
		},
		Dial: func(ctx context.Context, out io.Writer, addr string) error {
			defer close(done)
			return frontEnd(ctx, out, addr)
		},
	}
}

// backEnd serves on RDMA until ctx ends, or done.
func backEnd(ctx context.Context, out io.Writer, addr string, ready func(string), done <-chan struct{}) error {
	l, err := rdmanet.Listen("rdma", addr) // was net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s for %s", r.Method, r.URL.Path, r.Header.Get("X-Forwarded-For"))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { echo(out, w, r) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	ready(l.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	case <-done:
	}
	err = server.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// echo makes another protocol of a connection, and sends back what comes on it.
func echo(out io.Writer, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != protocol {
		http.Error(w, "only for "+protocol, http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	if _, ok := rdmanet.Unwrap(conn); ok {
		fmt.Fprintln(out, "an upgraded connection, on RDMA")
	}
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	if rw.Flush() != nil {
		return
	}
	_, _ = io.Copy(conn, rw) // until the client has said all
}

const protocol = "echo"

// newProxy is a handler that has the back end at addr answer.
func newProxy(addr string) *httputil.ReverseProxy {
	target := &url.URL{Scheme: "http", Host: addr}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:         (&rdmanet.Dialer{Timeout: 10 * time.Second}).DialContext, // was &net.Dialer{...}
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     time.Minute,
		},
	}
}

// frontEnd is the proxy, and a client on TCP that tries it.
func frontEnd(ctx context.Context, out io.Writer, addr string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	proxy := newProxy(addr)
	defer proxy.Transport.(*http.Transport).CloseIdleConnections()
	front := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = front.Serve(l) }) // until it is closed
	defer wg.Wait()
	defer front.Close()
	fmt.Fprintf(out, "TCP %s to RDMA %s\n", l.Addr(), addr)
	if err := request(ctx, out, l.Addr().String()); err != nil {
		return err
	}
	return upgrade(ctx, out, l.Addr().String())
}

// request is what any client does.
func request(ctx context.Context, out io.Writer, front string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+front+"/some/path", strings.NewReader("body"))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer http.DefaultClient.CloseIdleConnections()
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	fmt.Fprintf(out, "%s: %s\n", resp.Status, body)
	return err
}

// upgrade has the connection upgraded and talks on it.
func upgrade(ctx context.Context, out io.Writer, front string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", front)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	fmt.Fprintf(conn, "GET /echo HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", front, protocol)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("it was not upgraded: %s", resp.Status)
	}
	for _, line := range []string{"here", "and there"} { // each after the answer to the one before
		fmt.Fprintln(conn, line)
		answer, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s", resp.Header.Get("Upgrade"), answer)
	}
	// The end of what the client says reaches the back end, and its end comes back.
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		return errors.Join(err, fmt.Errorf("%q at the end", rest))
	}
	fmt.Fprintln(out, "both ends have ended")
	return nil
}
