package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/rdmanet"
)

// peer is a process that listens and dials, as its standard input says; what came of it stands in its standard output, a line each.
//
//	dial ID SEED FROM TO   end ID dialed RESULT
//	                       end ID accepted RESULT, at the process that was dialed
//	limit WHAT N           limited, or cannot ERROR; N < 0: as it was
//	check                  state JSON
//	quit                   nothing, and the end of the process; or left TEXT, and status 1
//
// RESULT is ok, or the kind of an error and its text.
type peer struct {
	l     net.Listener
	d     rdmanet.Dialer
	out   sync.Mutex
	talks sync.WaitGroup
	busy  atomic.Int64
	old   map[int]unix.Rlimit
}

// state is what a process has at rest.
type state struct {
	Busy       int64  `json:"busy"`
	Goroutines int    `json:"goroutines"`
	Files      int    `json:"files"`
	Mappings   int    `json:"mappings"`
	Heap       uint64 `json:"heap"`
	Conns      uint64 `json:"conns"`
	Left       string `json:"left"` // what the tracer names
}

// keepAlive notices within 20 s what no transport tells of.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 3 * time.Second, Count: 5}

func runPeer(device, addr string) error {
	debug.SetTraceback("all")
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		l.Close() // the runtime's poller keeps its files
	}
	leak.Start()
	before := look()
	lc := rdmanet.ListenConfig{Device: device, KeepAliveConfig: keepAlive}
	l, err := lc.Listen(context.Background(), "rdma", addr)
	if err != nil {
		return err
	}
	p := &peer{l: l, old: make(map[int]unix.Rlimit)}
	p.d = rdmanet.Dialer{Device: device, Timeout: dialTime, KeepAliveConfig: keepAlive}
	p.say("listening %v", l.Addr())
	var serving sync.WaitGroup
	serving.Go(p.serve)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		switch words[0] {
		case "dial":
			t := newTalk(number(words[1]), number(words[2]))
			p.begin()
			go p.dial(t, words[3], words[4])
		case "limit":
			p.limit(words[1], words[2])
		case "check":
			s := p.state()
			b, err := json.Marshal(s)
			if err != nil {
				return err
			}
			p.say("state %s", b)
		case "quit":
			if err := l.Close(); err != nil {
				return fmt.Errorf("closing the listener: %w", err)
			}
			serving.Wait()
			p.talks.Wait()
			return nothingLeft(before)
		}
	}
	return errors.New("no word of the end") // the conductor died
}

func number(s string) (n uint64) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

func (p *peer) say(format string, args ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Println(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " | "))
}

func (p *peer) begin() {
	p.talks.Add(1)
	p.busy.Add(1)
}

func (p *peer) end(t *talk, role string, err error) {
	p.busy.Add(-1)
	p.say("end %d %s %s", t.id, role, result(err))
	p.talks.Done()
}

// result is what the conductor judges by.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	kind := "other"
	for _, k := range []struct {
		err  error
		name string
	}{
		{errWrong, "wrong"}, {errShort, "short"}, {syscall.ECONNREFUSED, "refused"}, {syscall.EMFILE, "files"}, {syscall.ENOMEM, "memory"},
		{syscall.ECONNRESET, "reset"}, {syscall.EPIPE, "pipe"}, {syscall.ETIMEDOUT, "timeout"}, {os.ErrDeadlineExceeded, "timeout"},
		{context.DeadlineExceeded, "timeout"}, {syscall.EADDRNOTAVAIL, "address"}, {syscall.ENETUNREACH, "address"},
		{syscall.EHOSTUNREACH, "address"}, {rdmanet.ErrNoDevice, "address"}, {io.ErrUnexpectedEOF, "reset"},
	} {
		if errors.Is(err, k.err) {
			kind = k.name
			break
		}
	}
	return kind + " " + err.Error()
}

func (p *peer) dial(t talk, from, to string) {
	d := p.d
	if from != "-" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	begin := time.Now()
	c, err := d.Dial("rdma", to)
	if took := time.Since(begin); took > dialTime+dialSlack {
		err = fmt.Errorf("%w: dialing took %v", errWrong, took)
	}
	if err != nil {
		p.end(&t, "dialed", err)
		return
	}
	conn := c.(*rdmanet.Conn)
	if _, err = c.Write(t.header()); err != nil {
		c.Close()
		p.end(&t, "dialed", fmt.Errorf("writing the header: %w", err))
		return
	}
	p.end(&t, "dialed", t.run(conn, true))
}

func (p *peer) serve() {
	for {
		c, err := p.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if e, ok := err.(net.Error); ok && e.Temporary() { //nolint:errorlint,staticcheck // as http.Server looks at it
				time.Sleep(5 * time.Millisecond)
				continue
			}
			p.say("fault accept ends: %v", err)
			return
		}
		p.begin()
		go p.answer(c.(*rdmanet.Conn))
	}
}

func (p *peer) answer(c *rdmanet.Conn) {
	h := make([]byte, headerLen)
	_, err := io.ReadFull(c, h)
	t := parseTalk(h)
	if err != nil {
		c.Close()
		t.id = 0 // nobody's: the one who dialed tells
		p.end(&t, "accepted", fmt.Errorf("reading the header: %w", err))
		return
	}
	p.end(&t, "accepted", t.run(c, false))
}

// limits by name.
var limits = map[string]int{"files": unix.RLIMIT_NOFILE, "memlock": unix.RLIMIT_MEMLOCK}

// limit lowers a soft limit to what is in use and n more, or puts it back.
func (p *peer) limit(what, n string) {
	which := limits[what]
	var err error
	if old, lowered := p.old[which]; lowered {
		err = unix.Setrlimit(which, &old)
		delete(p.old, which)
	} else {
		if err = unix.Getrlimit(which, &old); err == nil {
			cur := number(n)
			if which == unix.RLIMIT_NOFILE {
				cur += uint64(highestFile() + 1)
			}
			p.old[which] = old
			err = unix.Setrlimit(which, &unix.Rlimit{Cur: min(cur, old.Max), Max: old.Max})
		}
	}
	if err != nil {
		p.say("cannot %v", err)
		return
	}
	p.say("limited")
}

func files() []os.DirEntry {
	es, _ := os.ReadDir("/proc/self/fd")
	return es
}

func highestFile() (n int) {
	for _, e := range files() {
		n = max(n, int(number(e.Name())))
	}
	return n
}

// look counts what a process has.
func look() state {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	maps, _ := os.ReadFile("/proc/self/maps")
	s := state{
		Goroutines: runtime.NumGoroutine(), Files: len(files()), Mappings: strings.Count(string(maps), "\n"), Heap: m.HeapAlloc,
	}
	for _, d := range rdmanet.AllStats() {
		s.Conns += d.Conns
	}
	return s
}

// ofConnections are the kinds of what belongs to connections. Listeners stay, and what processes share as long as they know each other.
func ofConnections() (left []leak.Object) {
	for _, o := range leak.Open() {
		switch o.Kind {
		case "stream", "queue pair", "completion queue", "memory region", "identifier":
			left = append(left, o)
		}
	}
	return left
}

// state waits until nothing is going on any more, for a bounded time.
func (p *peer) state() state {
	ctx, cancel := context.WithTimeout(context.Background(), restTime)
	defer cancel()
	_ = rdmanet.Drain(ctx) // what is not drained shows
	for {
		left := ofConnections()
		if p.busy.Load() == 0 && len(left) == 0 || ctx.Err() != nil {
			s := look()
			s.Busy = p.busy.Load()
			if len(left) > 0 {
				s.Left = (&leak.Error{Objects: left}).Error()
			}
			if s.Busy > 0 {
				s.Left += "\n" + stacks()
			}
			return s
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func stacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // a Builder takes all
	return b.String()
}

// nothingLeft compares a process that has closed everything with what it was.
func nothingLeft(before state) error {
	ctx, cancel := context.WithTimeout(context.Background(), restTime)
	defer cancel()
	if err := rdmanet.Drain(ctx); err != nil {
		return fmt.Errorf("left: drain: %w", err)
	}
	for {
		now := look()
		err := leak.Find(0)
		switch {
		case err != nil:
		case now.Conns > 0:
			err = fmt.Errorf("%d connections", now.Conns)
		case now.Files > before.Files+kept.files:
			err = fmt.Errorf("%d files, %d before", now.Files, before.Files)
		case now.Goroutines > before.Goroutines+kept.goroutines:
			err = fmt.Errorf("%d goroutines, %d before\n%s", now.Goroutines, before.Goroutines, stacks())
		default:
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("left: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// kept is what the C libraries keep as long as there is the process: an event channel, and the devices that librdmacm has opened.
var kept struct{ files, goroutines int }
