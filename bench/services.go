package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// services are what a peer offers, each until its listener is closed.
var services = map[string]func(l net.Listener){
	"echo": serveConns(echo(pingSize)),
	"sink": serveConns(sink),
	"http": serveHTTP,
	"grpc": serveGRPC,

	echoLong: serveConns(echo(longPing)),

	"datagrams": serveConns(serveDatagrams),
}

const (
	pingSize = 64
	longPing = 1 << 10
	echoLong = "long echo"
	readSize = 64 << 10
	bodyMax  = 1 << 20
)

func serveConns(h func(net.Conn)) func(l net.Listener) {
	return func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h(c)
			}()
		}
	}
}

func echo(size int) func(net.Conn) {
	return func(c net.Conn) {
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}
}

// sink reads a length, as many bytes, and says so.
func sink(c net.Conn) {
	buf := make([]byte, readSize)
	for {
		if _, err := io.ReadFull(c, buf[:8]); err != nil {
			return
		}
		for left := binary.LittleEndian.Uint64(buf); left > 0; {
			n, err := c.Read(buf[:min(left, readSize)])
			if err != nil {
				return
			}
			left -= uint64(n)
		}
		if _, err := c.Write(buf[:1]); err != nil {
			return
		}
	}
}

var body = bytes.Repeat([]byte("rdma"), bodyMax/4)

// serveHTTP answers GET /N with N bytes, on HTTP/1.1 and, without TLS, on HTTP/2.
func serveHTTP(l net.Listener) {
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
			if err != nil || n < 0 || n > len(body) {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Length", strconv.Itoa(n))
			_, _ = w.Write(body[:n]) // the client notices
		}),
		ReadHeaderTimeout: sampleLimit,
		IdleTimeout:       time.Hour, // connections wait for their turn
		Protocols:         new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	_ = srv.Serve(l) // until l is closed
}
