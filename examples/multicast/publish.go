package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

const (
	batch = 16
	// history is how many quotes the publisher can send again.
	history = 1 << 16
	// mostAsked bounds what one request draws: a request is a small datagram, and its sender's address may be another's.
	mostAsked = 64
	// idle is how often the number of the last quote is told while there is nothing new, and at the end.
	idle = 20 * time.Millisecond
	// patience is how long the publisher stays when nobody has asked for anything, at the end.
	patience = 500 * time.Millisecond
)

// publisher sends the feed, and parts of it again.
type publisher struct {
	c     *rdmanet.PacketConn
	group net.Addr

	mu      sync.Mutex // guards what follows
	past    [history]quote
	last    uint64 // number
	asked   time.Time
	repairs int
}

// open joins the group: to send only, or to receive.
func open(ctx context.Context, o *options, f rdmanet.JoinFlags) (*rdmanet.PacketConn, error) {
	group, err := netip.ParseAddr(o.group)
	if err != nil {
		return nil, err
	}
	return new(rdmanet.ListenConfig).ListenMulticast(ctx, "rdma-ud", o.ifi, &rdmanet.Addr{IP: group}, f)
}

// publish sends quotes until there are enough, and then waits until nobody misses any.
func publish(ctx context.Context, o *options) error {
	c, err := open(ctx, o, rdmanet.JoinSendOnly)
	if err != nil {
		return err
	}
	p := &publisher{c: c, group: c.LocalAddr()}
	fmt.Printf("publishing to %v, %d quotes a second\n", o.group, o.rate)
	answered := make(chan error, 1)
	go func() { answered <- p.answer() }()
	sum, err := p.send(ctx, o)
	if err == nil {
		err = p.end(ctx)
	}
	if e := c.Close(); err == nil {
		err = e
	}
	if e := <-answered; err == nil {
		err = e
	}
	if err == nil {
		fmt.Printf("published %d quotes, %d of them again on request, sha-256 %x\n", o.quotes, p.repairs, sum)
	}
	return err
}

// send sends quotes at the rate that is asked for, in batches. It returns the sum of all.
func (p *publisher) send(ctx context.Context, o *options) ([]byte, error) {
	random := rand.New(rand.NewPCG(1, 2))
	sum := sha256.New()
	symbols := [][8]byte{{'R', 'D', 'M', 'A'}, {'R', 'O', 'C', 'E'}, {'V', 'E', 'R', 'B'}, {'M', 'C', 'K', 'E', 'Y'}}
	out := newBatch(p.group)
	start := time.Now()
	for sent := 0; sent < o.quotes; {
		n := min(batch, o.quotes-sent)
		out.reset()
		p.mu.Lock()
		for range n {
			p.last++
			q := &p.past[p.last%history]
			*q = quote{symbols[random.IntN(len(symbols))], 10_000 + random.Uint64N(1000), 1 + random.Uint64N(500)}
			sum.Write(out.add(&datagram{kind: quoteKind, number: p.last, quote: *q}))
		}
		p.mu.Unlock()
		if err := out.send(p.c); err != nil {
			return nil, err
		}
		sent += n
		due := start.Add(time.Duration(sent) * time.Second / time.Duration(o.rate))
		if d := time.Until(due); d > time.Millisecond && !sleep(ctx, d) || ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return sum.Sum(nil), nil
}

// end says that the feed ends, until no subscriber asks for anything.
func (p *publisher) end(ctx context.Context) error {
	out := newBatch(p.group)
	start := time.Now()
	for {
		p.mu.Lock()
		last, asked := p.last, p.asked
		p.mu.Unlock()
		if time.Since(start) > patience && time.Since(asked) > patience {
			return nil
		}
		out.reset()
		out.add(&datagram{kind: endKind, number: last})
		if err := out.send(p.c); err != nil {
			return err
		}
		if !sleep(ctx, idle) {
			return ctx.Err()
		}
	}
}

// answer sends quotes to subscribers that miss them, until the connection is closed.
func (p *publisher) answer() error {
	b := make([]byte, maxLength)
	out := newBatch(nil)
	for {
		n, from, err := p.c.ReadFrom(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		d, err := parse(b[:n])
		if err != nil || d.kind != askKind {
			continue
		}
		out.to = from
		if err := p.repair(out, &d); err != nil && !errors.Is(err, net.ErrClosed) {
			fmt.Println("cannot answer:", err) // this subscriber; there are others
		}
	}
}

// repair answers one request.
func (p *publisher) repair(out *outgoing, d *datagram) error {
	p.mu.Lock()
	p.asked = time.Now()
	oldest := uint64(1)
	if p.last > history {
		oldest = p.last - history + 1
	}
	end := min(d.number, p.last+1) + min(d.count, mostAsked)
	end = min(end, p.last+1)
	if d.number < oldest {
		p.mu.Unlock()
		out.reset()
		out.add(&datagram{kind: oldestKind, number: oldest})
		return out.send(p.c)
	}
	var quotes []datagram
	for n := d.number; n < end; n++ {
		quotes = append(quotes, datagram{kind: quoteKind, number: n, quote: p.past[n%history]})
	}
	p.repairs += len(quotes)
	p.mu.Unlock()
	for len(quotes) > 0 {
		out.reset()
		n := min(batch, len(quotes))
		for i := range n {
			out.add(&quotes[i])
		}
		if err := out.send(p.c); err != nil {
			return err
		}
		quotes = quotes[n:]
	}
	return nil
}

// outgoing is a batch of datagrams to one address.
type outgoing struct {
	to  net.Addr
	ms  [batch]rdmanet.Message
	mem [batch][maxLength]byte
	n   int
}

func newBatch(to net.Addr) *outgoing {
	o := &outgoing{to: to}
	for i := range o.ms {
		o.ms[i].Buffers = make([][]byte, 1)
	}
	return o
}

func (o *outgoing) reset() { o.n = 0 }

// add adds a datagram, and returns its bytes behind the head.
func (o *outgoing) add(d *datagram) []byte {
	b := d.append(o.mem[o.n][:0])
	o.ms[o.n].Buffers[0], o.ms[o.n].Addr = b, o.to
	o.n++
	return b[headLength:]
}

func (o *outgoing) send(c *rdmanet.PacketConn) error {
	for sent := 0; sent < o.n; {
		n, err := c.WriteBatch(o.ms[sent:o.n], 0)
		if err != nil {
			return err
		}
		sent += n
	}
	return nil
}
