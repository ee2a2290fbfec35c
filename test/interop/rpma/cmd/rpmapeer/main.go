// Command rpmapeer has the scenarios of the C programs of test/interop/rpma/c, on package rpma:
//
//	rpmapeer SCENARIO serve|dial ADDRESS PORT
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/go-rdma/rdma/rpma"
)

type scenario struct{ serve, dial func(*side) }

var scenarios = map[string]scenario{
	"connect": {serveConnect, dialConnect},
	"nodata":  {serveNoData, dialNoData},
	"reject":  {serveReject, dialReject},
	"nobody":  {nil, dialRejected},
	"silent":  {serveSilent, dialSilent},
	"deaf":    {serveDeaf, dialDeaf},
	"killed":  {serveKilled, dialKilled},

	"read":    {serveRead, dialRead},
	"write":   {serveWrite, dialWrite},
	"flush":   {serveFlush, dialFlush},
	"noflush": {serveNoFlush, dialNoFlush},
	"atomic":  {serveAtomic, dialAtomic},
	"access":  {serveAccess, dialAccess},

	"send":    {serveSend(mainCQ), dialSend(mainCQ)},
	"rcq":     {serveSend(ownCQ), dialSend(ownCQ)},
	"shared":  {serveSend(sharedChannel), dialSend(sharedChannel)},
	"srq":     {serveSRQ(true, false), dialSRQ},
	"srqmain": {serveSRQ(false, false), dialSRQ},
	"srqrcq":  {serveSRQ(false, true), dialSRQ},
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: rpmapeer SCENARIO serve|dial ADDRESS PORT")
	}
	c, ok := scenarios[os.Args[1]]
	f := c.dial
	if os.Args[2] == "serve" {
		f = c.serve
	}
	if !ok || f == nil {
		log.Fatalf("no scenario %s", os.Args[1])
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 150*time.Second, errors.New("not done after 150 s"))
	run(ctx, f, os.Args[2] == "serve", net.JoinHostPort(os.Args[3], os.Args[4]))
	cancel()
	fmt.Println("done")
}

// run ends the program if anything is not as it should be.
func run(ctx context.Context, f func(*side), serve bool, addr string) {
	var d *rpma.Device
	var err error
	if serve {
		d, err = rpma.LookupLocal(addr)
	} else {
		d, err = rpma.LookupRemote(ctx, addr)
	}
	try(err)
	want := os.Getenv("RDMANET_DEVICE")
	check(want == "" || d.Provider == want, "the device is %s's, not %s's", d.Provider, want)
	s := &side{ctx: ctx, addr: addr}
	s.peer, err = rpma.NewPeer(d)
	try(err)
	f(s)
	s.close()
	try(s.peer.Close()) // which refuses while anything is left
}

// side is one end of a connection.
type side struct {
	ctx    context.Context
	addr   string
	peer   *rpma.Peer
	config rpma.ConnConfig
	ep     *rpma.Endpoint
	req    *rpma.ConnReq
	conn   *rpma.Conn
	remote rpma.RemoteMR
	mrs    []*rpma.MR
}

func try(err error) {
	if err != nil {
		_, file, line, _ := runtime.Caller(1)
		log.Fatalf("%s:%d: %v", filepath.Base(file), line, err)
	}
}

// mustFail ends the program unless err is of a kind.
func mustFail(kind, err error) {
	if !errors.Is(err, kind) {
		log.Fatalf("%v, but %v was to come", err, kind)
	}
}

func check(ok bool, format string, args ...any) {
	if !ok {
		log.Fatalf(format, args...)
	}
}

func (s *side) alloc(n int, u rpma.Usage) *rpma.MR {
	m, err := s.peer.Alloc(n, u)
	try(err)
	s.mrs = append(s.mrs, m)
	return m
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i/256*13 + seed)
	}
	return b
}

func expectPattern(b []byte, seed int) {
	check(bytes.Equal(b, pattern(len(b), seed)), "%d bytes are others than the peer's", len(b))
}

func (s *side) listen() {
	var err error
	s.ep, err = s.peer.Listen(s.addr)
	try(err)
	fmt.Println("listening")
}

func (s *side) nextRequest() {
	var err error
	s.req, err = s.ep.Accept(s.ctx, &s.config)
	try(err)
}

func (s *side) request() {
	var err error
	s.req, err = s.peer.NewConnReq(s.ctx, s.addr, &s.config)
	try(err)
}

// connect accepts or connects.
func (s *side) connect(data []byte) {
	var err error
	s.conn, err = s.req.Connect(s.ctx, data)
	try(err)
}

func (s *side) dial(data []byte) {
	s.request()
	s.connect(data)
}

// acceptOffering accepts with a descriptor and a peer configuration.
func (s *side) acceptOffering(m *rpma.MR, direct bool) {
	b, err := m.AppendBinary(nil)
	try(err)
	b, err = rpma.PeerConfig{DirectWriteToPMem: direct}.AppendBinary(b)
	try(err)
	check(len(b) == rpma.DescriptorSize+1, "%d bytes to offer", len(b))
	s.connect(b)
}

func (s *side) takeOffer() {
	var err error
	s.remote, err = rpma.ParseRemoteMR(s.conn.PrivateData())
	try(err)
}

func (s *side) closed() {
	select {
	case <-s.conn.Done():
	case <-s.ctx.Done():
		try(context.Cause(s.ctx))
	}
}

// end disconnects, as the first or the second.
func (s *side) end(first bool) {
	if first {
		try(s.conn.Disconnect())
	}
	s.closed()
	try(s.conn.Close())
	s.conn = nil
}

func (s *side) close() {
	if s.conn != nil {
		try(s.conn.Close())
	}
	if s.ep != nil {
		try(s.ep.Close())
	}
	for _, m := range s.mrs {
		try(m.Close())
	}
}

func (s *side) next(q *rpma.CQ) rpma.Completion {
	var wc [1]rpma.Completion
	for {
		n, err := q.Poll(wc[:])
		try(err)
		if n == 1 {
			return wc[0]
		}
		try(q.Wait(s.ctx))
	}
}

func (s *side) expect(q *rpma.CQ, id uint64) rpma.Completion {
	c := s.next(q)
	try(c.Err())
	check(c.ID == id, "completion %d, but %d was to come", c.ID, id)
	return c
}

func expectNone(q *rpma.CQ) {
	n, err := q.Poll(make([]rpma.Completion, 1))
	try(err)
	check(n == 0, "a completion too many")
}

// post posts one operation.
func (s *side) post(op rpma.Op, id uint64, flags rpma.Flags) {
	_, err := s.tryPost(op, id, flags)
	try(err)
}

func (s *side) tryPost(op rpma.Op, id uint64, flags rpma.Flags) (int, error) {
	op.ID, op.Flags = id, flags
	return s.conn.Post(op)
}
