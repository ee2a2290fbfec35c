package rdmanet_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

func ExampleListen() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello over RDMA")
	})}
	go server.Serve(l)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: new(rdmanet.Dialer).DialContext}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Print(string(body))
	// Output: hello over RDMA
}

func ExampleDial() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	}()

	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()
	fmt.Fprint(c, "echo")
	c.(*rdmanet.Conn).CloseWrite()
	b, err := io.ReadAll(c)
	fmt.Printf("%s %v\n", b, err)
	// Output: echo <nil>
}

func ExampleDialer_DialContext() {
	dialer := &rdmanet.Dialer{
		Timeout: 5 * time.Second,
		Device:  "softroce", // empty: the best there is
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext:       dialer.DialContext,
		ForceAttemptHTTP2: true, // a DialContext alone turns HTTP/2 off
	}}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080/", nil)
	if err != nil {
		log.Print(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		log.Print(err)
		return
	}
	defer resp.Body.Close()
}

// A program that ends at once should let what it closed be delivered first.
func ExampleDrain() {
	send := func(c net.Conn) {
		fmt.Fprintln(c, "the last words")
		c.Close()
	}
	c, err := rdmanet.Dial("rdma", "127.0.0.1:8080")
	if err != nil {
		log.Print(err)
		return
	}
	send(c)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := rdmanet.Drain(ctx); err != nil {
		log.Print(err)
	}
}

// Which way does a server's connection go?
func ExampleUnwrap() {
	l, err := rdmanet.Listen("rdma", ":8080")
	if err != nil {
		log.Print(err)
		return
	}
	server := &http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if rc, ok := rdmanet.Unwrap(c); ok {
				s := rc.Stats()
				log.Println(c.RemoteAddr(), "comes by", s.Provider, s.Device)
			}
			return ctx
		},
	}
	log.Print(server.Serve(l))
}
