// Command peer is the other end of the C programs that come with librdmacm, on softroce.
//
//	peer cmatose -b addr | -s addr     ucmatose: messages both ways, then the server disconnects
//	peer storm -b addr | -s addr       cmtime: many connections at once, and their ends
//	peer rping -b addr | -s addr       rping: the server READs what the client has and WRITEs it back
//	peer reject -b addr                refuses every connection
//	peer refused -s addr [-d hex]      connects with that private data and prints how that was refused
//	peer udaddy -b addr | -s addr      udaddy: datagrams to a service and as many back
//	peer nolookup -b addr | -s addr    refuses to be looked up, or prints how a lookup was refused
//	peer invalidate -s addr            testdata/invalidate.c: SENDs with invalidate both ways
//	peer mckey -b addr -m group [-send [-o]]  mckey: datagrams to a group; the receiver leaves when it has all
//	peer udaddynet, peer mckeynet      the same on package rdmanet
//
// It exits with 0 if all went as it must.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

// options are what all modes have.
type options struct {
	bind, server netip.Addr
	port         uint
	connections  int
	messages     int
	size         int
	private      []byte // of the client
	group        netip.Addr
	send         bool
	sendOnly     bool
	timeout      time.Duration
}

func (o *options) remote() netip.AddrPort { return netip.AddrPortFrom(o.server, uint16(o.port)) }

var modes = map[string]func(ctx context.Context, p verbs.Provider, o *options) error{
	"cmatose": cmatose,
	"storm":   storm,
	"rping":   rping,
	"reject":  reject,
	"refused": refused,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || modes[args[0]] == nil {
		return errors.New("usage: peer cmatose|storm|rping|reject|refused|udaddy|nolookup|mckey|invalidate [flags]")
	}
	var o options
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	f.TextVar(&o.bind, "b", netip.Addr{}, "address to listen on")
	f.TextVar(&o.server, "s", netip.Addr{}, "address of the server")
	f.UintVar(&o.port, "p", 7471, "port")
	f.IntVar(&o.connections, "c", 1, "connections")
	f.IntVar(&o.messages, "C", 10, "messages of each connection and way")
	f.IntVar(&o.size, "S", 100, "bytes of a message")
	f.Func("d", "private data of the client, in hexadecimal", func(s string) (err error) {
		o.private, err = hex.DecodeString(s)
		return err
	})
	f.TextVar(&o.group, "m", netip.Addr{}, "multicast group")
	f.BoolVar(&o.send, "send", false, "send to the group")
	f.BoolVar(&o.sendOnly, "o", false, "join to send only")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "for all")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if o.bind.IsValid() == o.server.IsValid() {
		return errors.New("either -b or -s")
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	return modes[args[0]](ctx, softroce.New(&softroce.Config{}), &o)
}

// listen listens and says so, which is what the other side waits for.
func listen(ctx context.Context, p verbs.Provider, o *options) (verbs.Listener, error) {
	l, err := p.Listen(ctx, &verbs.ListenAttr{
		PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(o.bind, uint16(o.port)), Backlog: max(o.connections, 16),
	})
	if err != nil {
		return nil, err
	}
	fmt.Println("listening on", l.Addr())
	return l, nil
}

func reject(ctx context.Context, p verbs.Provider, o *options) error {
	l, err := listen(ctx, p, o)
	if err != nil {
		return err
	}
	defer l.Close()
	for range o.connections {
		id, err := l.GetRequest(ctx)
		if err != nil {
			return err
		}
		if err := id.Reject([]byte("not today")); err != nil {
			return err
		}
		if err := id.Close(); err != nil {
			return err
		}
	}
	return nil
}

func refused(ctx context.Context, p verbs.Provider, o *options) error {
	n, err := dial(ctx, p, o)
	if err == nil {
		_ = n.close()
		return errors.New("the connection was not refused")
	}
	rej := new(verbs.RejectError)
	if !errors.As(err, &rej) || !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("no refusal but %w", err)
	}
	fmt.Println("refused, reason", rej.Reason)
	return nil
}
