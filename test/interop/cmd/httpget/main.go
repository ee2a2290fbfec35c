// httpget is an http.Client on package rdmanet. It fetches each URL and prints status, length,
// SHA-256 and whether the connection was one that had been used before.
//
//	httpget [-ca FILE] [-h1] [-conc N] [-fresh] URL[=SIZE]...
//
// With =SIZE it fails if the body is not the first SIZE bytes of the stream of seed SIZE.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/pattern"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

type getter struct {
	client *http.Client
	method string
	upload int64
}

func main() { peer.Main("httpget", run) }

func run(args []string) error {
	fs := flag.NewFlagSet("httpget", flag.ContinueOnError)
	ca := fs.String("ca", "", "trust the certificate in this `file`")
	h1 := fs.Bool("h1", false, "HTTP/1.1 only")
	fresh := fs.Bool("fresh", false, "a connection for each request")
	conc := fs.Int("conc", 1, "requests at a time for each URL")
	repeat := fs.Int("repeat", 1, "rounds")
	upload := fs.Int64("upload", -1, "send a body of so many bytes by POST")
	limit := fs.Duration("limit", 2*time.Minute, "time for one request")
	wait := fs.Duration("wait", 10*time.Second, "how long to try while nobody listens")
	if err := fs.Parse(args); err != nil {
		return err
	}
	tr := &http.Transport{
		DialContext:         patient(new(rdmanet.Dialer), *wait),
		ForceAttemptHTTP2:   !*h1,
		DisableKeepAlives:   *fresh,
		DisableCompression:  true, // the bytes as they are
		MaxIdleConnsPerHost: *conc,
	}
	if *ca != "" {
		pool := x509.NewCertPool()
		b, err := os.ReadFile(*ca)
		if err != nil {
			return err
		}
		if !pool.AppendCertsFromPEM(b) {
			return fmt.Errorf("%s holds no certificate", *ca)
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	g := &getter{client: &http.Client{Transport: tr, Timeout: *limit}, method: http.MethodGet, upload: *upload}
	if *upload >= 0 {
		g.method = http.MethodPost
	}
	for range *repeat {
		for _, arg := range fs.Args() {
			if err := g.several(arg, *conc); err != nil {
				return err
			}
		}
	}
	tr.CloseIdleConnections()
	for _, s := range rdmanet.AllStats() {
		b, _ := json.Marshal(s) // numbers and names
		fmt.Printf("stats %s\n", b)
	}
	return nil
}

// patient dials again while nobody listens: the server may just be starting.
func patient(d *rdmanet.Dialer, wait time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		return peer.Dial(ctx, d, addr, wait)
	}
}

func (g *getter) several(arg string, conc int) error {
	errs := make(chan error, conc)
	for range conc {
		go func() { errs <- g.one(arg) }()
	}
	var all error
	for range conc {
		all = errors.Join(all, <-errs)
	}
	return all
}

func (g *getter) one(arg string) error {
	url, size, checked := strings.Cut(arg, "=")
	var reused, onRDMA bool
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			reused = info.Reused
			_, onRDMA = rdmanet.Unwrap(info.Conn)
		},
	})
	var body io.Reader
	if g.upload >= 0 {
		body = pattern.RandomN(uint64(g.upload), g.upload)
	}
	req, err := http.NewRequestWithContext(ctx, g.method, url, body)
	if err != nil {
		return err
	}
	if g.upload >= 0 {
		req.ContentLength = g.upload
	}
	start := time.Now()
	resp, err := g.client.Do(req)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(h, resp.Body)
	_ = resp.Body.Close() // read to its end
	if err != nil {
		return fmt.Errorf("%s: after %d bytes: %w", url, n, err)
	}
	sum := fmt.Sprintf("%x", h.Sum(nil))
	fmt.Printf("%s %s %s bytes=%d chunked=%t reused=%t rdma=%t seconds=%.3f sha256=%s\n", url, resp.Proto, resp.Status, n,
		resp.ContentLength < 0, reused, onRDMA, time.Since(start).Seconds(), sum)
	if !onRDMA {
		return fmt.Errorf("%s: not over RDMA", url)
	}
	if !checked {
		return nil
	}
	want, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return err
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", url, resp.Status)
	case n != want:
		return fmt.Errorf("%s: %d bytes, not %d", url, n, want)
	case sum != pattern.Sum(uint64(want), want): //nolint:gosec // a seed
		return fmt.Errorf("%s: %d bytes, not those of seed %d", url, n, want)
	}
	return nil
}
