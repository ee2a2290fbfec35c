// httpd is an http.Server on package rdmanet with bodies that can be checked.
//
//	GET  /size/N       N bytes of the stream of seed N, with a Content-Length
//	GET  /chunked/N    the same in pieces, without one
//	GET  /slow/N       the same, a piece every 50 ms
//	GET  /file/N       the same out of a file, by http.ServeContent: ranges work
//	ANY  /sum          the method, length and SHA-256 of the request's body
//	ANY  /echo         the request's body
//	GET  /abort/N      half of N bytes, then the connection is torn down
//
// With -tls it serves HTTPS, with a certificate that it writes into the file named.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"context"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/pattern"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

func main() { peer.Main("httpd", run) }

func run(args []string) error {
	fs := flag.NewFlagSet("httpd", flag.ContinueOnError)
	addr := fs.String("addr", ":8080", "`address`")
	cert := fs.String("tls", "", "serve HTTPS and write the certificate to this `file`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "httpd")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary either way

	srv := &http.Server{Handler: handler(dir), ReadHeaderTimeout: time.Minute}
	if *cert != "" {
		c, pem, err := peer.Certificate()
		if err != nil {
			return err
		}
		if err := os.WriteFile(*cert, pem, 0o644); err != nil { //nolint:gosec // public
			return err
		}
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS12}
	}
	l, err := peer.Listen(&rdmanet.ListenConfig{}, *addr)
	if err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	served := make(chan error, 1)
	go func() {
		if *cert != "" {
			served <- srv.ServeTLS(l, "", "")
		} else {
			served <- srv.Serve(l)
		}
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = srv.Shutdown(ctx)
	fmt.Printf("stats of the listener: %v\n", l.(*rdmanet.Listener).Stats())
	for _, s := range rdmanet.AllStats() {
		b, _ := json.Marshal(s) // numbers and names
		fmt.Printf("stats %s\n", b)
	}
	return err
}

func handler(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /size/{n}", sized(func(w http.ResponseWriter, r *http.Request, n int64) {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.Copy(w, body(n)) // the client's end tells
	}))
	mux.HandleFunc("GET /chunked/{n}", sized(func(w http.ResponseWriter, r *http.Request, n int64) {
		pieces(w, n, 7919, 0)
	}))
	mux.HandleFunc("GET /slow/{n}", sized(func(w http.ResponseWriter, r *http.Request, n int64) {
		pieces(w, n, n/10+1, 50*time.Millisecond)
	}))
	mux.HandleFunc("GET /file/{n}", sized(func(w http.ResponseWriter, r *http.Request, n int64) {
		path := filepath.Join(dir, strconv.FormatInt(n, 10))
		if err := write(path, n); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		http.ServeFile(w, r, path)
	}))
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, err := io.Copy(h, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s %d %x\n", r.Method, n, h.Sum(nil))
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 has it anyway
		_, _ = io.Copy(w, r.Body)                            // the client's end tells
	})
	mux.HandleFunc("GET /abort/{n}", sized(func(w http.ResponseWriter, r *http.Request, n int64) {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, body(n), n/2)
		panic(http.ErrAbortHandler)
	}))
	return mux
}

func sized(f func(w http.ResponseWriter, r *http.Request, n int64)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 || n > 1<<30 {
			http.Error(w, "a size up to 1 GiB", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		f(w, r, n)
	}
}

func body(n int64) io.Reader { return pattern.RandomN(uint64(n), n) } //nolint:gosec // a seed

func pieces(w http.ResponseWriter, n, piece int64, pause time.Duration) {
	rc := http.NewResponseController(w)
	for src := body(n); n > 0; n -= piece {
		if _, err := io.CopyN(w, src, min(piece, n)); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		time.Sleep(pause)
	}
}

// write makes a file once; several requests may ask for it at the same time.
func write(path string, n int64) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, body(n))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
