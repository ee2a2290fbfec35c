// Command echo is a stream's two ends: a server that sends back what comes, until its standard input ends, and a client that sends
// something and wants it back.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

func main() {
	listen := flag.String("listen", "", "serve at this address")
	dial := flag.String("dial", "", "dial this address")
	device := flag.String("device", "", "device list")
	class := flag.Uint("class", 0, "traffic class")
	size := flag.Int("size", 4000, "bytes to send")
	flag.Parse()
	err := fmt.Errorf("-listen or -dial")
	switch {
	case *listen != "":
		err = serve(*listen, &rdmanet.ListenConfig{Device: *device, TrafficClass: uint8(*class), KeepAlive: -1})
	case *dial != "":
		err = ask(*dial, &rdmanet.Dialer{Device: *device, TrafficClass: uint8(*class), Timeout: 30 * time.Second}, *size)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(addr string, lc *rdmanet.ListenConfig) error {
	l, err := lc.Listen(context.Background(), "rdma", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening at", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // whatever ends it
		_ = l.Close()
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return drain()
		}
		go func() {
			_, _ = io.Copy(c, c) // the client tells what is wrong
			_ = c.Close()
		}()
	}
}

func ask(addr string, d *rdmanet.Dialer, size int) error {
	c, err := d.Dial("rdma", addr)
	if err != nil {
		return err
	}
	msg := bytes.Repeat([]byte("echo"), size/4)
	if _, err := c.Write(msg); err != nil {
		return err
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return fmt.Errorf("something else came back")
	}
	if err := c.Close(); err != nil {
		return err
	}
	return drain()
}

func drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return rdmanet.Drain(ctx)
}
