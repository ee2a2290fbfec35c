// net-rpc calls methods of a server by net/rpc, on RDMA queue pairs instead of TCP. What makes the difference is one line at each end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"sync"

	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rdmanet"
)

var example = roles.Example{Serve: serve, Dial: dial}

func main() { roles.Main(example) }

// Words is what the server offers.
type Words struct {
	mu    sync.Mutex
	count map[string]int
}

// Add counts words, and returns how many different ones there have been.
func (w *Words) Add(words []string, different *int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, word := range words {
		if word == "" {
			return errors.New("a word has letters")
		}
		w.count[word]++
	}
	*different = len(w.count)
	return nil
}

// Count returns how often there was a word.
func (w *Words) Count(word string, n *int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n = w.count[word]
	return nil
}

// serve serves one client.
func serve(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
	srv := rpc.NewServer()
	if err := srv.Register(&Words{count: map[string]int{}}); err != nil {
		return err
	}
	l, err := rdmanet.Listen("rdma", addr) // was net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	ready(l.Addr().String())

	// srv.Accept(l) serves all there are.
	c, err := l.Accept()
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	srv.ServeConn(c) // closes it
	fmt.Fprintln(out, "the client has gone")
	return ctx.Err()
}

func dial(ctx context.Context, out io.Writer, addr string) (err error) {
	c, err := (&rdmanet.Dialer{}).DialContext(ctx, "rdma", addr) // was (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	client := rpc.NewClient(c)
	defer func() { err = errors.Join(err, client.Close()) }()
	defer context.AfterFunc(ctx, func() { client.Close() })()

	var n int
	if err := client.Call("Words.Add", []string{"never", "odd", "or", "even", "never"}, &n); err != nil {
		return err
	}
	fmt.Fprintln(out, n, "different words")

	// Calls need not wait for each other.
	var calls []*rpc.Call
	for range 1000 {
		calls = append(calls, client.Go("Words.Add", []string{"never"}, new(int), nil))
	}
	for _, call := range calls {
		if err := (<-call.Done).Error; err != nil {
			return err
		}
	}
	if err := client.Call("Words.Count", "never", &n); err != nil {
		return err
	}
	fmt.Fprintf(out, "\"never\" %d times, carried by %s\n", n, carrier(c))

	// What a method returns is an error here, and the connection lives on.
	if err := client.Call("Words.Add", []string{""}, &n); err == nil {
		return errors.New("a word without letters was taken")
	} else if _, ok := errors.AsType[rpc.ServerError](err); !ok {
		return err
	} else {
		fmt.Fprintln(out, "the server says:", err)
	}
	return nil
}

// carrier is what carries a connection.
func carrier(c net.Conn) string {
	r, ok := rdmanet.Unwrap(c)
	if !ok {
		return fmt.Sprintf("%T", c)
	}
	s := r.Stats()
	return s.Provider + ", " + s.Device
}
