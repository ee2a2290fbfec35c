package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// httpConn is a client of net/http's with one connection: HTTP/1.1 for one request at a time, and HTTP/2 without TLS for more, a stream for each.
type httpConn struct{ http.Client }

// connBuffer is what a client's end of HTTP/2 buffers, for all its streams.
const connBuffer = 4 << 20

func connectHTTP(c cell, dial dialFunc) (requester, error) {
	tr := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
		MaxConnsPerHost:    1,
		Protocols:          new(http.Protocols),
		// What an end may buffer is bounded, so that all of them together are.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: connBuffer},
	}
	tr.Protocols.SetHTTP1(c.depth == 1)
	tr.Protocols.SetUnencryptedHTTP2(c.depth > 1)
	return &httpConn{http.Client{Transport: tr}}, nil
}

func (c *httpConn) close() { c.CloseIdleConnections() }

func (c *httpConn) get(ctx context.Context, body int, buf []byte, w *window) (got int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://peer/%d", body), http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("answer %s", resp.Status)
	}
	for {
		n, err := resp.Body.Read(buf)
		got += n
		w.came(n)
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
	}
}
