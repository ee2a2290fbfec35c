package rdmanet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// serveEcho sends back what comes on each connection, until the listener is closed.
func serveEcho(l net.Listener) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	return wg.Wait
}

// A connection has what a *net.TCPConn has: here the end of one way, and a deadline.
func ExampleConn() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer serveEcho(l)()
	defer l.Close()
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()
	conn := c.(*rdmanet.Conn)

	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, "all of it")
	conn.CloseWrite()
	b, err := io.ReadAll(conn)
	fmt.Printf("%s %v\n", b, err)
	// Output: all of it <nil>
}

func ExampleConn_SetReadDeadline() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer serveEcho(l)()
	defer l.Close()
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()

	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = c.Read(make([]byte, 1))
	var ne net.Error
	fmt.Println(errors.As(err, &ne) && ne.Timeout())
	// Output: true
}

// A latency-critical reader looks for data for as long as it mostly takes to come, and sleeps only then.
func ExampleConn_SetBusyPoll() {
	c, err := rdmanet.Dial("rdma", "server:7471")
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()
	if err := c.(*rdmanet.Conn).SetBusyPoll(500 * time.Microsecond); err != nil {
		log.Print(err)
	}
}

func ExampleListener() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer l.Close()
	l.(*rdmanet.Listener).SetDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = l.Accept()
	var ne net.Error
	fmt.Println(errors.As(err, &ne) && ne.Timeout())
	// Output: true
}

// What became of requests to connect.
func ExampleListenerStats() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	wait := serveEcho(l)
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Fprint(c, "echo")
	io.ReadFull(c, make([]byte, 4)) // so it was accepted
	c.Close()
	l.Close()
	wait()
	s := l.(*rdmanet.Listener).Stats()
	fmt.Println(s.Accepted, "accepted,", s.Rejected, "rejected,", s.Dropped, "dropped,", s.Failed, "failed,", s.Waiting, "waiting")
	// Output: 1 accepted, 0 rejected, 0 dropped, 0 failed, 0 waiting
}

// A server that takes connections of one network only. An address is a claim: it keeps out who came by mistake, not who means harm.
func ExampleListenConfig() {
	_, allowed, _ := net.ParseCIDR("10.0.0.0/8")
	lc := &rdmanet.ListenConfig{
		ReadBuffer: 256 << 10,
		Backlog:    128,
		Admit: func(r *rdmanet.Request) error {
			if !allowed.Contains(r.Remote.IP.AsSlice()) {
				return fmt.Errorf("%v is not of this network", r.Remote)
			}
			return nil
		},
	}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer l.Close()
	_, err = rdmanet.Dial("rdma", l.Addr().String())
	fmt.Println(errors.Is(err, syscall.ECONNREFUSED), l.(*rdmanet.Listener).Stats().Rejected)
	// Output: true 1
}

// TCP where RDMA does not get through, on both ends.
func ExampleListenConfig_fallback() {
	ctx := context.Background()
	lc := &rdmanet.ListenConfig{Fallback: &net.ListenConfig{}}
	l, err := lc.Listen(ctx, "rdma", "127.0.0.1:0") // RDMA's port and TCP's, of one number
	if err != nil {
		log.Print(err)
		return
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(l) })
	defer wg.Wait()
	defer server.Close()

	d := &rdmanet.Dialer{Fallback: &net.Dialer{}}
	tr := &http.Transport{DialContext: d.DialContext, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	old := &http.Transport{} // which knows TCP alone
	defer old.CloseIdleConnections()
	for _, t := range []*http.Transport{tr, old} {
		resp, err := (&http.Client{Transport: t}).Get("http://" + l.Addr().String())
		if err != nil {
			log.Print(err)
			return
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Printf("%s %v\n", b, err)
	}
	fmt.Println(l.(*rdmanet.Listener).Stats().TCP, "by TCP")
	// Output:
	// hello <nil>
	// hello <nil>
	// 1 by TCP
}

// Who asks is known before anything is allocated for it.
func ExampleRequest() {
	lc := &rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		log.Printf("%v asks for %v on %s (%s)", r.Remote, r.Local, r.Device, r.Provider)
		return nil
	}}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer l.Close()
}

// The kernel vouches for processes of this host that come by shared memory; others are strangers to it.
func ExampleCred() {
	lc := &rdmanet.ListenConfig{Admit: func(r *rdmanet.Request) error {
		if r.Cred == nil {
			return errors.New("only for processes of this host")
		}
		log.Print("process ", r.Cred.PID, " of user ", r.Cred.UID)
		return nil
	}}
	l, err := lc.Listen(context.Background(), "rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer l.Close()
}

func ExampleStats() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Print(err)
		return
	}
	defer serveEcho(l)()
	defer l.Close()
	c, err := rdmanet.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close()
	io.WriteString(c, strings.Repeat("echo", 1000))
	io.ReadFull(c, make([]byte, 4000))
	s := c.(*rdmanet.Conn).Stats()
	fmt.Println(s.BytesWritten, "bytes written,", s.BytesRead, "read,", s.Provider != "")
	// Output: 4000 bytes written, 4000 read, true
}

// Statistics print as a line.
func ExampleStats_String() {
	s := rdmanet.Stats{Provider: "softroce", Device: "softroce0", BytesRead: 4000, MessagesRead: 2, BytesWritten: 12, MessagesWritten: 1, Parks: 1, Wakeups: 1, ReadBuffer: 16384}
	fmt.Println(s)
	// Output: softroce softroce0: read 4000 B in 2 messages, wrote 12 B in 1; 0 credit stalls, 0 retransmits, 0 RNRs; 0 spins, 1 parks, 1 wakeups; buffers 16384 B and 0 B
}

// What this process has done, by device. metrics/prometheus makes metrics of it.
func ExampleDeviceStats() {
	for _, s := range rdmanet.AllStats() {
		fmt.Printf("%s (%s): %d connections, %d of %d dials failed, %d packets were changed on the way\n",
			s.Device, s.Provider, s.Conns, s.DialErrors, s.Dials, s.BadICRC)
	}
}

func ExampleDialer() {
	d := &rdmanet.Dialer{
		Timeout:         5 * time.Second,
		Device:          "mlx5_0, softroce",                         // the adapter, or the built-in device
		KeepAliveConfig: net.KeepAliveConfig{Idle: 5 * time.Second}, // a dead peer is noticed earlier
		BusyPoll:        200 * time.Microsecond,
	}
	c, err := d.Dial("rdma", "server:7471")
	if err != nil {
		log.Print(err) // with what to do, in words
		return
	}
	defer c.Close()
}
