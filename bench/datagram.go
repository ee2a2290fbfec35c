package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-rdma/rdma/bench/internal/figures"
	"github.com/go-rdma/rdma/rdmanet"
)

// Datagrams to a group, in another process: how many of them a second arrive while one sends as fast as it can, and how long it takes until
// one is answered. Package net's are UDP's, one for each call; rdmanet's go by batches where there are several.
type datagramCase struct {
	size int
	echo bool
}

var datagramCases = []datagramCase{{64, false}, {1 << 10, false}, {64, true}, {1 << 10, true}}

func (c datagramCase) name() string {
	if c.echo {
		return fmt.Sprintf("datagrams, %s round trip", sizeName(c.size))
	}
	return "datagrams, " + sizeName(c.size)
}

func (c datagramCase) unit() string {
	if c.echo {
		return "µs"
	}
	return "per second"
}

func (c datagramCase) faster(a, b float64) float64 {
	if c.echo {
		return b / a
	}
	return a / b
}

type datagramRow struct {
	c     datagramCase
	sides []datagramFigures
}

// datagramFigures are one side's, by round.
type datagramFigures struct {
	side          string
	figures       []float64
	cpu           []float64 // seconds of both processes, for each that arrived or was answered
	sent, arrived uint64
}

const (
	sideUDP      = "UDP"
	datagramMost = 32 // of a batch
)

// packets is a socket of either side that is a member of a group, or sends to it.
type packets interface {
	// read waits for datagrams and returns their number; answer sends the last of them back to who has sent it.
	read() (int, error)
	answer() error
	// write sends n datagrams to the group.
	write(n int) error
	SetReadDeadline(t time.Time) error
	Close() error
}

// datagramRequest opens a receiver.
type datagramRequest struct {
	Side, Device, Group string
	Size                int
	Echo                bool
}

func (q *datagramRequest) open(receiver bool) (packets, error) {
	group, err := netip.ParseAddr(q.Group)
	if err != nil {
		return nil, err
	}
	if q.Side == sideUDP {
		return openUDP(group, q.Size, receiver)
	}
	return openRDMA(group, q.Device, q.Size, receiver)
}

// udpPackets are package net's.
type udpPackets struct {
	*net.UDPConn
	group netip.AddrPort
	from  netip.AddrPort
	b     []byte
	n     int
}

const groupPort = 7900 // of UDP, and none that the system gives to whoever asks for any

func openUDP(group netip.Addr, size int, receiver bool) (*udpPackets, error) {
	p := &udpPackets{group: netip.AddrPortFrom(group, groupPort), b: make([]byte, size)}
	var err error
	if receiver {
		var lo *net.Interface
		if lo, err = net.InterfaceByName("lo"); err != nil {
			return nil, err
		}
		p.UDPConn, err = net.ListenMulticastUDP("udp4", lo, net.UDPAddrFromAddrPort(p.group))
	} else {
		p.UDPConn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	if err != nil {
		return nil, err
	}
	if err := p.SetReadBuffer(4 << 20); err != nil { // as much as the system gives
		return nil, err
	}
	return p, nil
}

func (p *udpPackets) read() (n int, err error) {
	p.n, p.from, err = p.ReadFromUDPAddrPort(p.b)
	return 1, err
}

func (p *udpPackets) answer() error {
	_, err := p.WriteToUDPAddrPort(p.b[:p.n], p.from)
	return err
}

func (p *udpPackets) write(n int) error {
	for range n {
		if _, err := p.WriteToUDPAddrPort(p.b, p.group); err != nil {
			return err
		}
	}
	return nil
}

// rdmaPackets are rdmanet's.
type rdmaPackets struct {
	*rdmanet.PacketConn
	in, out [datagramMost]rdmanet.Message
	n       int
}

func openRDMA(group netip.Addr, device string, size int, receiver bool) (*rdmaPackets, error) {
	lc := rdmanet.ListenConfig{Device: device, ReadBuffer: 4 << 20}
	c, err := lc.ListenPacket(context.Background(), "rdma-ud4", loopback)
	if err != nil {
		return nil, err
	}
	p := &rdmaPackets{PacketConn: c.(*rdmanet.PacketConn)}
	for i := range p.in {
		p.in[i].Buffers = [][]byte{make([]byte, size)}
		p.out[i] = rdmanet.Message{Buffers: [][]byte{make([]byte, size)}, Addr: &rdmanet.Addr{IP: group}}
	}
	if receiver {
		if _, err := p.JoinGroup(context.Background(), nil, &rdmanet.Addr{IP: group}, 0); err != nil {
			_ = c.Close() // the first error says more
			return nil, err
		}
	}
	return p, nil
}

func (p *rdmaPackets) read() (n int, err error) {
	p.n, err = p.ReadBatch(p.in[:], 0)
	return p.n, err
}

func (p *rdmaPackets) answer() error {
	m := &p.in[p.n-1]
	_, err := p.WriteTo(m.Buffers[0][:m.N], m.Addr)
	return err
}

func (p *rdmaPackets) write(n int) error {
	sent, err := p.WriteBatch(p.out[:n], 0)
	if err == nil && sent < n {
		err = errors.New("a batch was cut")
	}
	return err
}

// serveDatagrams is the other process: for each connection a receiver, which tells how many it has got whenever it is asked.
func serveDatagrams(c net.Conn) {
	in, out := bufio.NewScanner(c), json.NewEncoder(c)
	if !in.Scan() {
		return
	}
	var q datagramRequest
	err := json.Unmarshal(in.Bytes(), &q)
	var p packets
	if err == nil {
		p, err = q.open(true)
	}
	if err != nil {
		_ = out.Encode(err.Error()) // the client is gone, or reads it
		return
	}
	defer p.Close()
	var got atomic.Uint64
	go func() {
		for {
			n, err := p.read()
			if err != nil {
				return // closed
			}
			got.Add(uint64(n))
			if q.Echo && p.answer() != nil {
				return
			}
		}
	}()
	for err = out.Encode(""); err == nil && in.Scan(); {
		err = out.Encode(got.Load())
	}
}

// datagramClient is the sender, and a connection to the process of the receiver.
type datagramClient struct {
	p       packets
	control net.Conn
	lines   *bufio.Scanner
}

func (r *results) dialDatagrams(ctx context.Context, p *peer, c datagramCase, side string, number int) (*datagramClient, error) {
	addr, err := p.offer("datagrams", sideTCP)
	if err != nil {
		return nil, err
	}
	q := datagramRequest{Side: side, Device: r.o.device, Group: fmt.Sprintf("239.255.79.%d", 1+number), Size: c.size, Echo: c.echo}
	d := &datagramClient{}
	if d.control, err = new(net.Dialer).DialContext(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	d.lines = bufio.NewScanner(d.control)
	var failed string
	if err := d.ask(q, &failed); err != nil {
		return nil, err
	}
	if failed != "" {
		return nil, errors.New(failed)
	}
	d.p, err = q.open(false)
	return d, err
}

func (d *datagramClient) ask(question, answer any) error {
	if err := json.NewEncoder(d.control).Encode(question); err != nil {
		return err
	}
	if !d.lines.Scan() {
		return errors.New("the other process ended")
	}
	return json.Unmarshal(d.lines.Bytes(), answer)
}

func (d *datagramClient) close() {
	if d.p != nil {
		d.p.Close()
	}
	d.control.Close()
}

// settled is how long no datagram may arrive until those that are missing are lost.
const settled = 100 * time.Millisecond

// arrived is how many the receiver has got, once it is as many as were sent, or no more come behind those that it had before. The first is
// waited for longer: on a busy machine nobody may have sent it yet, or looked.
func (d *datagramClient) arrived(before, sent uint64) (n uint64, err error) {
	for last, since := before, time.Now(); ; time.Sleep(time.Millisecond) {
		patience := settled
		if last == before {
			patience = sampleLimit
		}
		if err := d.ask("", &n); err != nil || n >= sent || n == last && time.Since(since) > patience {
			return n, err
		}
		if n != last {
			last, since = n, time.Now()
		}
	}
}

// send sends for a time.
func (d *datagramClient) send(long time.Duration, f *datagramFigures) (arrived uint64, took time.Duration, err error) {
	start := time.Now()
	for took < long {
		if err := d.p.write(datagramMost); err != nil {
			return 0, 0, err
		}
		f.sent += datagramMost
		took = time.Since(start)
	}
	now, err := d.arrived(f.arrived, f.sent)
	return now - f.arrived, took, err
}

// ping sends one after the other, each when the one before was answered. A lost one ends it.
func (d *datagramClient) ping(long time.Duration, f *datagramFigures) (answered uint64, took time.Duration, err error) {
	if err := d.p.SetReadDeadline(time.Now().Add(long + sampleLimit)); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	for took < long {
		if err := d.p.write(1); err != nil {
			return 0, 0, err
		}
		f.sent++
		if _, err := d.p.read(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errors.New("an answer was lost")
			}
			return 0, 0, err
		}
		answered++
		took = time.Since(start)
	}
	return answered, took, nil
}

func (r *results) measureDatagrams(ctx context.Context) error {
	var p *peer
	for i, c := range datagramCases {
		if !r.o.pick(c.name(), true) {
			continue
		}
		if p == nil {
			var err error
			if p, err = startPeerProcess(ctx, r.o); err != nil {
				return err
			}
			defer p.close() //nolint:gocritic // once
		}
		progress("%s", c.name())
		x := datagramRow{c: c}
		if err := r.measureDatagram(ctx, &x, p, i); err != nil {
			return fmt.Errorf("%s: %w", c.name(), err)
		}
		r.datagrams = append(r.datagrams, x)
	}
	return nil
}

func (r *results) measureDatagram(ctx context.Context, x *datagramRow, p *peer, number int) error {
	names := []string{sideUDP, sideRDMA}
	clients := make([]*datagramClient, len(names))
	x.sides = make([]datagramFigures, len(names))
	for i, name := range names {
		x.sides[i].side = name
		var err error
		if clients[i], err = r.dialDatagrams(ctx, p, x.c, name, 2*number+i); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer clients[i].close() //nolint:gocritic // two of them, and both live until the end
	}
	for round := range r.o.rounds {
		for _, i := range turns(len(names), round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			f := &x.sides[i]
			used, err := p.processorTime()
			if err != nil {
				return err
			}
			do := clients[i].send
			if x.c.echo {
				do = clients[i].ping
			}
			n, took, err := do(r.o.sample, f)
			if err != nil {
				return fmt.Errorf("%s: %w", f.side, err)
			}
			now, err := p.processorTime()
			if err != nil {
				return err
			}
			f.arrived += n
			figure := float64(n) / took.Seconds()
			if x.c.echo {
				figure = 1e6 / figure
			}
			f.figures = append(f.figures, figure)
			f.cpu = append(f.cpu, (now-used).Seconds()/float64(max(n, 1)))
		}
	}
	return nil
}

func (r *results) reportDatagrams(b *strings.Builder) {
	fmt.Fprintln(b, "\n## Datagrams to a group, two processes")
	fmt.Fprintln(b, "\nSent as fast as the sender can; the figure is of those that arrive. UDP is package net's, one for each call; RDMA's go in batches of 32.")
	fmt.Fprint(b, "\n| case | side | figure | speed | lost | CPU |\n|---|---|---|---|---|---|\n")
	for i := range r.datagrams {
		x := &r.datagrams[i]
		for k := range x.sides {
			s := &x.sides[k]
			speed := ""
			if k > 0 {
				speed = figures.Spread(ratios(s.figures, x.sides[0].figures, x.c.faster))
			}
			fmt.Fprintf(b, "| %s | %s | %s %s | %s | %.1f %% | %s µs |\n", x.c.name(), s.side, figures.Spread(s.figures), x.c.unit(), speed,
				100*(1-float64(s.arrived)/float64(max(s.sent, 1))), figures.Figure(median(s.cpu)*1e6))
		}
	}
}
