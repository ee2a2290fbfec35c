package ring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// What a script is made of: acts, and behind some of them arguments.
const (
	peerData      = iota // 16 bits: up to so many bytes
	peerFill             // the rest of the buffer
	peerLie              // type of immediate, 16 bits announced, 16 bits written
	peerEmpty            // a message of no bytes
	peerLimit            // 16 bits: so many messages more than now
	peerPublish          // 16 bits: a buffer of so many bytes
	peerForge            // entry, and 16 bytes for it
	peerOdd              // 8 bits: an update of so many bytes, written elsewhere
	peerEnd              // 8 bits: the value of a control message
	peerIOMap            // a message about slots that the Conn has not
	peerInternal         // a message to be ignored
	peerSend             // a SEND
	peerLong             // a SEND longer than its receive
	peerBreak            // the queue pair goes to the error state
	peerAck              // 8 bits: so many of the Conn's requests
	peerFlush            // what was staged arrives, in one batch
	appRead              // 16 bits
	appWrite             // 16 bits
	appCloseRead         //
	appCloseWrite        //
	acts
)

const (
	peerAddr = 1 << 50 // of the peer's memory; its target SGL is at the beginning
	peerKey  = 7

	batchMax    = 24        // messages, so that one Poll takes all
	scriptWrite = 256 << 10 // bytes that an application writes at most, which wait for nobody
)

// scriptBuf is receive memory, and how much of it is full.
type scriptBuf struct {
	descriptor
	used uint32
}

// scriptedPeer is the peer of a script, with a plain reading of the rules.
type scriptedPeer struct {
	t    *testing.T
	link *nicLink
	c    *Conn

	// What the peer may do, as the Conn has told.
	sgl              descriptor
	bufs             []scriptBuf
	allowed, counted uint64 // messages
	wrote            int    // bytes

	// What the Conn may do.
	entries     uint32
	order       byteOrder // of the peer's target SGL
	mine        []scriptBuf
	next        int // entry of the Conn's target SGL
	connOrder   byteOrder
	limit, sent uint16
	descriptors uint32 // that the Conn has published
	got         int    // bytes
	ended       bool   // by the Conn, with either message
	aborted     bool

	staged []func() verbs.WC
	told   [sglEntries]bool // entries of the Conn's target SGL that messages of this batch tell of

	read, write int // bytes, by the application
	sink, shut  bool

	err, werr error // what the application shall see; nil: nothing yet
	lost      int   // bytes that the application wrote when the peer had gone
	refused   bool  // it was told that the peer has gone
	breaches  uint64
	before    uint64
	dead      bool // broken: nothing arrives any more
	over      bool // so since this batch: what is behind the breach counts for nothing,
	deaf      bool // or is data behind a bad update, which may have been taken first
	least     int  // bytes that the application is to get; those up to wrote it may get
}

func newScriptedPeer(t *testing.T, n *nic, hello []byte) *scriptedPeer {
	big := hello[0]&1 != 0
	p := &scriptedPeer{t: t, before: ProtocolErrors(), next: 1}
	p.entries, p.order, p.limit = 2+uint32(hello[2]), order(big), uint16(hello[1])
	first := descriptor{addr: peerAddr + 1<<30, key: peerKey, length: 1 + uint32(hello[3])*37}
	p.mine = []scriptBuf{{descriptor: first}}
	d := connData{bigEndian: big, credits: p.limit, sgl: descriptor{peerAddr, peerKey, p.entries}, buf: first}
	p.link = &nicLink{n: n, hello: d.appendTo(nil), posted: p.posted}
	n.link = p.link
	id := nicID{nicLink: p.link}
	var err error
	if hello[0]&2 != 0 {
		Server(id, nil, func(c *Conn, e error) { p.c, err = c, e })
		p.link.handler(verbs.Event{Type: verbs.EventEstablished})
	} else {
		p.c, err = Client(context.Background(), id, nil)
	}
	require.NoError(t, err)
	return p
}

// posted looks at what the Conn says: its private data, and each request.
func (p *scriptedPeer) posted(wr *verbs.SendWR, b []byte) error {
	if wr == nil {
		d, err := parseConnData(b)
		p.sgl, p.allowed, p.connOrder = d.sgl, uint64(d.credits), order(d.bigEndian)
		p.bufs = []scriptBuf{{descriptor: d.buf}}
		return errors.Join(err, p.receives())
	}
	typ, v := parseImm(wr.Imm)
	switch {
	case wr.Op == verbs.OpWrite && errors.Is(p.werr, ErrProtocol) && wr.RemoteAddr == peerAddr^1<<63:
		p.aborted = true // which makes the peer see it
		return nil
	case p.werr != nil || wr.Op != verbs.OpWriteWithImm:
	case typ == immData:
		return p.postedData(wr, b)
	case typ == immSGL:
		return p.postedUpdate(wr, v, b)
	case typ == immCtrl && (v == ctrlShutdown || v == ctrlDisconnect) && len(b) == 0 && p.got == p.write && p.shut:
		p.ended = true
		return nil
	}
	return fmt.Errorf("%+v with %d bytes, after %w", wr, len(b), p.werr)
}

func (p *scriptedPeer) postedData(wr *verbs.SendWR, b []byte) error {
	if len(p.mine) == 0 || p.limit == p.sent || p.ended {
		return fmt.Errorf("data in spite of %d buffers, limit %d, %d sent, end %v", len(p.mine), p.limit, p.sent, p.ended)
	}
	m, n := &p.mine[0], uint32(len(b))
	if n == 0 || n > m.length-m.used || wr.RemoteAddr != m.addr+uint64(m.used) || wr.RKey != m.key || wr.Imm != n {
		return fmt.Errorf("%d bytes to %#x with immediate %#x, for %+v", n, wr.RemoteAddr, wr.Imm, *m)
	}
	if !bytes.Equal(b, pattern(p.got, len(b))) {
		return fmt.Errorf("other bytes than the application's at %d", p.got)
	}
	p.got += len(b)
	p.sent++
	if m.used += n; m.used == m.length {
		p.mine = p.mine[1:]
	}
	return nil
}

func (p *scriptedPeer) postedUpdate(wr *verbs.SendWR, v uint32, b []byte) error {
	if len(b) > 0 {
		p.descriptors++
		if to := peerAddr + uint64(p.descriptors%p.entries)*descriptorLen; len(b) != descriptorLen || wr.RKey != peerKey || wr.RemoteAddr != to {
			return fmt.Errorf("descriptor %d, of %d bytes, to %#x", p.descriptors, len(b), wr.RemoteAddr)
		}
		d := parseDescriptor(b, p.order)
		mr := p.link.n.mrs[d.key]
		if d.length == 0 || p.link.n.at(d.key, d.addr, d.length) == nil || mr.access&verbs.RemoteWrite == 0 {
			return fmt.Errorf("published %+v, which is not its own", d)
		}
		for _, m := range p.bufs {
			if m.key == d.key {
				return fmt.Errorf("published %+v twice", d)
			}
		}
		if p.bufs = append(p.bufs, scriptBuf{descriptor: d}); len(p.bufs) > 2 {
			return fmt.Errorf("%d buffers at once", len(p.bufs))
		}
	}
	more := uint16(v) - uint16(p.allowed)
	p.allowed += uint64(more)
	if more > windowMax {
		return fmt.Errorf("limit moved by %d", int16(more))
	}
	return p.receives()
}

// receives holds what the Conn has allowed against the receives it has posted.
func (p *scriptedPeer) receives() error {
	if room := int(p.allowed - p.counted); p.link.receives < room+freeMessages {
		return fmt.Errorf("%d messages allowed, %d receives", room, p.link.receives)
	}
	return nil
}

func (p *scriptedPeer) run(script []byte) {
	arg := func(n int) (v int) {
		for i := 0; i < n && len(script) > 0; i++ {
			v |= int(script[0]) << (8 * i)
			script = script[1:]
		}
		return v
	}
	for len(script) > 0 {
		switch act := arg(1) % acts; act {
		case peerData:
			n := uint32(arg(2)) + 1
			p.stage(func() verbs.WC { return p.data(n) })
		case peerFill:
			p.stage(func() verbs.WC { return p.data(1 << 30) })
		case peerLie:
			typ, v, n := []uint32{immData, 1, 3, 5}[arg(1)%4], uint32(arg(2)), uint32(arg(2))
			p.stage(func() verbs.WC { return p.message(imm(typ, v), n) })
		case peerEmpty:
			p.stage(func() verbs.WC { return p.message(0, 0) })
		case peerLimit:
			n := uint32(arg(2))
			p.stage(func() verbs.WC { return p.message(imm(immSGL, uint32(p.limit)+n), 0) }) // 17 bits
		case peerPublish:
			n := uint32(arg(2))
			p.stage(func() verbs.WC {
				d := descriptor{addr: peerAddr + 1<<40 + uint64(n)<<20, key: peerKey + n, length: n}
				return p.publish(p.next, d.append(nil, p.connOrder))
			})
		case peerForge:
			entry, b := arg(1)%sglEntries, make([]byte, descriptorLen)
			script = script[copy(b, script):]
			p.stage(func() verbs.WC { return p.publish(entry, b) })
		case peerOdd:
			n := uint32(arg(1))
			p.stage(func() verbs.WC { return p.message(imm(immSGL, uint32(p.limit)), n) })
		case peerEnd:
			v := uint32(arg(1))
			p.stage(func() verbs.WC { return p.message(imm(immCtrl, v), 0) })
		case peerIOMap:
			p.stage(func() verbs.WC { return p.message(imm(immIOMap, 1), 0) })
		case peerInternal:
			p.stage(func() verbs.WC { return p.message(imm(immInternal, 1), 0) })
		case peerSend:
			p.stage(func() verbs.WC { return verbs.WC{ID: rc.RecvBit, Op: verbs.WCRecv} })
		case peerLong:
			p.stage(func() verbs.WC { return verbs.WC{ID: rc.RecvBit, Status: verbs.LocLenErr} })
		case peerBreak:
			p.stage(func() verbs.WC { return verbs.WC{ID: rc.RecvBit, Status: verbs.WRFlushErr} })
		case peerAck:
			p.flush()
			p.link.complete(arg(1), verbs.Success)
			p.flush()
		case peerFlush:
			p.flush()
		case appRead:
			p.appRead(1 + arg(2))
		case appWrite:
			p.appWrite(1 + arg(2))
		case appCloseRead:
			p.flush()
			p.sink, p.read = true, p.wrote
			require.NoError(p.t, p.c.CloseRead())
		case appCloseWrite:
			p.flush()
			p.shut = true
			require.NoError(p.t, p.c.CloseWrite())
		}
		require.NoError(p.t, p.link.err)
	}
	p.flush()
}

func (p *scriptedPeer) stage(f func() verbs.WC) {
	if p.staged = append(p.staged, f); len(p.staged) == batchMax {
		p.flush()
	}
}

// message is a WRITE with immediate; what it writes is the stream, where the next of it belongs.
func (p *scriptedPeer) message(imm, written uint32) verbs.WC {
	if len(p.bufs) > 0 {
		m := p.bufs[0]
		n := min(written, m.length-m.used)
		copy(p.link.n.at(m.key, m.addr+uint64(m.used), n), pattern(p.wrote, int(n)))
	}
	return verbs.WC{ID: rc.RecvBit, Op: verbs.WCRecvWithImm, Flags: verbs.WCWithImm, Imm: imm, ByteLen: written}
}

// data is as the rules want it, as far as they let it.
func (p *scriptedPeer) data(n uint32) verbs.WC {
	if len(p.bufs) == 0 || p.counted == p.allowed {
		return p.message(imm(immInternal, 0), 0)
	}
	n = min(n, p.bufs[0].length-p.bufs[0].used)
	return p.message(imm(immData, n), n)
}

func (p *scriptedPeer) entry(i int) []byte {
	return p.link.n.at(p.sgl.key, p.sgl.addr+uint64(i)*descriptorLen, descriptorLen)
}

// publish does not write what the Conn is about to look at: which of both it sees is a race that
// the peer has with itself.
func (p *scriptedPeer) publish(entry int, b []byte) verbs.WC {
	if p.told[entry] {
		return p.message(imm(immInternal, 0), 0)
	}
	wc := p.message(imm(immSGL, uint32(p.limit)), descriptorLen)
	copy(p.entry(entry), b)
	return wc
}

// flush lets what is staged arrive, in one batch, and says what must come of it.
func (p *scriptedPeer) flush() {
	for _, f := range p.staged {
		if p.dead || p.link.receives == 0 {
			break
		}
		p.arrive(f())
	}
	p.dead = p.dead || p.over
	p.staged = p.staged[:0]
	for again := true; again; again = len(p.link.staged) > 0 {
		p.c.rc.Progress()
	}
	p.told = [sglEntries]bool{}
	require.NoError(p.t, p.link.err)
	if p.dead {
		require.True(p.t, p.link.errored || p.aborted, "the peer goes on")
	}
}

func (p *scriptedPeer) arrive(wc verbs.WC) {
	p.link.receives--
	p.link.staged = append(p.link.staged, wc)
	update := wc.Op == verbs.WCRecvWithImm && wc.Imm>>immShift == immSGL
	switch {
	case p.over && wc.Status == verbs.WRFlushErr:
		p.dead = true
		return
	case p.over:
		if end := wc.Imm>>immShift == immCtrl; !p.deaf && !update && !end {
			p.deaf = p.rules(&wc) != nil
		}
		return
	case wc.Status == verbs.WRFlushErr:
		p.dead = true
		p.fail(syscall.ECONNRESET, syscall.ECONNRESET)
	default:
		if p.rules(&wc) != nil {
			p.over, p.deaf = true, !update
			p.breaches++
			p.fail(ErrProtocol, ErrProtocol)
			return
		}
	}
	p.least = p.wrote
}

// rules is what a peer may do, and what comes of it.
func (p *scriptedPeer) rules(wc *verbs.WC) error {
	if wc.Status != verbs.Success || wc.Op != verbs.WCRecvWithImm {
		return errors.New("a SEND")
	}
	switch typ, v := parseImm(wc.Imm); typ {
	case immInternal:
		return nil
	case immSGL:
		return p.ruleOfUpdates(wc.ByteLen, v)
	case immCtrl:
		switch {
		case v == ctrlDisconnect && p.werr == nil:
			p.fail(io.EOF, syscall.EPIPE)
		case v == ctrlDisconnect, v == ctrlShutdown:
			p.fail(io.EOF, p.werr)
		}
		return nil
	default:
		if p.counted++; p.counted > p.allowed {
			return errors.New("no credit")
		}
		if typ == immIOMap {
			return nil
		}
		return p.ruleOfData(v, wc.ByteLen)
	}
}

func (p *scriptedPeer) fail(err, werr error) {
	if p.err == nil {
		p.err = err
	}
	if p.werr == nil {
		p.werr = werr
	}
}

func (p *scriptedPeer) ruleOfData(v, written uint32) error {
	switch {
	case v != written:
		return errors.New("not what was written")
	case v == 0:
		return nil
	case len(p.bufs) == 0 || v > p.bufs[0].length-p.bufs[0].used:
		return errors.New("no room")
	}
	if p.bufs[0].used += v; p.bufs[0].used == p.bufs[0].length {
		p.bufs = p.bufs[1:]
	}
	if p.wrote += int(v); p.sink {
		p.read = p.wrote
	}
	return nil
}

func (p *scriptedPeer) ruleOfUpdates(written, v uint32) error {
	switch written {
	case 0:
	case descriptorLen:
		p.told[p.next] = true
		d := parseDescriptor(p.entry(p.next), p.connOrder)
		if !d.valid() || len(p.mine) == sglEntries {
			return errors.New("no descriptor, or one too many")
		}
		p.mine = append(p.mine, scriptBuf{descriptor: d})
		p.next = (p.next + 1) % sglEntries
	default:
		return errors.New("half a descriptor")
	}
	p.limit = uint16(v)
	return nil
}

func (p *scriptedPeer) appRead(n int) {
	if p.sink {
		n = 1
	}
	ready := p.read < p.least || p.err != nil || p.sink
	if !ready {
		require.False(p.t, p.c.readReady())
		return
	}
	b := make([]byte, n)
	k, err := p.c.Read(b)
	switch {
	case p.sink:
		require.Zero(p.t, k)
		require.Equal(p.t, io.EOF, err)
	case k > 0:
		require.NoError(p.t, err)
		require.GreaterOrEqual(p.t, k, min(n, p.least-p.read))
		require.LessOrEqual(p.t, p.read+k, p.wrote)
		require.True(p.t, bytes.Equal(b[:k], pattern(p.read, k)), "other bytes than the peer's")
		p.read += k
	default:
		require.GreaterOrEqual(p.t, p.read, p.least)
		require.ErrorIs(p.t, err, p.err)
	}
}

func (p *scriptedPeer) appWrite(n int) {
	if p.write+n > scriptWrite {
		return
	}
	p.flush()
	k, err := p.c.Write(pattern(p.write, n))
	unread := p.read < p.least
	if p.read < p.wrote && !unread {
		unread = err == nil // what came with a breach of the rules counts or not
	}
	switch {
	case p.shut:
		require.ErrorIs(p.t, err, syscall.EPIPE)
	case p.werr == syscall.EPIPE && unread && !p.sink && !p.refused && p.lost+n <= lostMost:
		require.NoError(p.t, err, "the peer has gone, and what it said last is unread")
		require.Equal(p.t, n, k)
		p.lost += n
		return
	case p.werr == syscall.EPIPE:
		p.refused = true
		require.ErrorIs(p.t, err, p.werr)
	case p.werr != nil:
		require.ErrorIs(p.t, err, p.werr)
	default:
		require.NoError(p.t, err)
		require.Equal(p.t, n, k)
		p.write += n
		return
	}
	require.Zero(p.t, k)
}

// end ends the connection, looks at what the application sees of it, and closes.
func (p *scriptedPeer) end() {
	p.link.handler(verbs.Event{Type: verbs.EventDisconnected, Err: errors.New("gone")})
	p.fail(syscall.ECONNRESET, syscall.ECONNRESET)
	for p.read < p.least {
		p.appRead(1 << 20)
	}
	for range maxSegments {
		p.appRead(1 << 20)
	}
	p.appWrite(1)
	st := p.c.Stats()
	require.GreaterOrEqual(p.t, st.BytesRead, uint64(p.least))
	require.LessOrEqual(p.t, st.BytesRead, uint64(p.wrote))
	require.EqualValues(p.t, p.got, st.BytesWritten)
	require.Equal(p.t, p.breaches, ProtocolErrors()-p.before)
	require.NoError(p.t, p.c.Close())
	require.NoError(p.t, p.link.err)
}
