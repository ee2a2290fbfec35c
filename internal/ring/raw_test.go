package ring

import (
	"context"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// rawPeer speaks to a Conn in verbs: what a test tells it, and nothing else.
type rawPeer struct {
	t      testing.TB
	id     verbs.CMID
	dev    verbs.Device
	pd     verbs.PD
	cq     verbs.CQ
	qp     verbs.QP
	arena  verbs.Arena
	mr     verbs.MR
	mem    []byte
	theirs connData
	sends  uint64
	wcs    []verbs.WC
	events chan verbs.Event
}

const (
	rawBuf     = 4096 // offset of the receive buffer; the target SGL is at 0
	rawBufLen  = 64 << 10
	rawSrc     = 128 << 10 // offset of what is sent
	rawEntries = 4
)

func newRaw(t testing.TB, id verbs.CMID, receives int) *rawPeer {
	p := &rawPeer{t: t, id: id, events: make(chan verbs.Event, 16)}
	id.SetHandler(func(ev verbs.Event) { p.events <- ev })
	var err error
	p.dev, err = id.Provider().Open(id.Device().Info().Name)
	require.NoError(t, err)
	p.pd, err = p.dev.AllocPD()
	require.NoError(t, err)
	p.arena, err = p.pd.NewArena(2 << 20)
	require.NoError(t, err)
	p.mem = p.arena.Bytes()
	p.mr, err = p.pd.RegMR(p.mem, verbs.LocalWrite|verbs.RemoteWrite)
	require.NoError(t, err)
	p.cq, err = p.dev.CreateCQ(&verbs.CQAttr{Depth: 1024})
	require.NoError(t, err)
	p.qp, err = id.CreateQP(p.pd, &verbs.QPInitAttr{
		Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 400, MaxRecvWR: 400, MaxSendSGE: 1, MaxRecvSGE: 1, MinRNRTimer: 1,
	})
	require.NoError(t, err)
	p.recv(receives)
	t.Cleanup(p.close)
	return p
}

func (p *rawPeer) recv(n int) {
	for range n {
		k, err := p.qp.PostRecv([]verbs.RecvWR{{ID: 1 << 40}})
		require.NoError(p.t, err)
		require.Equal(p.t, 1, k)
	}
}

func (p *rawPeer) close() {
	_ = p.id.Disconnect()
	for _, c := range []io.Closer{p.qp, p.cq, p.id, p.mr, p.arena, p.pd, p.dev} {
		assert.NoError(p.t, c.Close())
	}
}

// hello is a well-formed block of private data of this peer's memory.
func (p *rawPeer) hello(credits uint16) connData {
	return connData{
		credits: credits,
		sgl:     descriptor{addr: p.mr.Addr(), key: p.mr.RKey(), length: rawEntries},
		buf:     descriptor{addr: p.mr.Addr() + rawBuf, key: p.mr.RKey(), length: rawBufLen},
	}
}

// rawClient connects a raw peer to a Conn that serves.
func (w *world) rawClient(credits uint16, receives int, change func(b []byte)) (*rawPeer, *Conn) {
	w.t.Helper()
	ch := w.accept()
	p := newRaw(w.t, w.resolve(), receives)
	d := p.hello(credits)
	hello := d.appendTo(nil)
	if change != nil {
		change(hello)
	}
	rep, err := p.id.Connect(context.Background(), connParam(hello))
	require.NoError(w.t, err)
	p.theirs, err = parseConnData(rep.PrivateData)
	require.NoError(w.t, err)
	s := <-ch
	require.NoError(w.t, s.err)
	w.t.Cleanup(func() { _, _ = s.c.SetLinger(0), s.c.Close() })
	return p, s.c
}

// rawServer answers the next request with a raw peer.
func (w *world) rawServer(credits uint16, change func(b []byte)) <-chan *rawPeer {
	ch := make(chan *rawPeer, 1)
	go func() {
		id, err := w.ln.GetRequest(context.Background())
		if !assert.NoError(w.t, err) {
			close(ch)
			return
		}
		p := newRaw(w.t, id, int(credits)+32)
		p.theirs, err = parseConnData(id.Request().PrivateData)
		assert.NoError(w.t, err)
		d := p.hello(credits)
		hello := d.appendTo(nil)
		if change != nil {
			change(hello)
		}
		assert.NoError(w.t, id.Accept(connParam(hello)))
		ch <- p
	}()
	return ch
}

// post sends one WRITE WITH IMMEDIATE and returns its status.
func (p *rawPeer) post(addr uint64, key, imm uint32, data []byte) verbs.Status {
	return p.send(verbs.SendWR{Op: verbs.OpWriteWithImm, Imm: imm, RemoteAddr: addr, RKey: key}, data)
}

func (p *rawPeer) send(wr verbs.SendWR, data []byte) verbs.Status {
	p.t.Helper()
	p.sends++
	wr.ID, wr.Flags = p.sends, verbs.Signaled
	if len(data) > 0 {
		copy(p.mem[rawSrc:], data)
		wr.SGL = []verbs.SGE{{Addr: p.mr.Addr() + rawSrc, Length: uint32(len(data)), LKey: p.mr.LKey()}}
	}
	n, err := p.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(p.t, err)
	require.Equal(p.t, 1, n)
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		p.poll()
		for i, wc := range p.wcs {
			if wc.ID == wr.ID {
				p.wcs = append(p.wcs[:i], p.wcs[i+1:]...)
				return wc.Status
			}
		}
	}
	p.t.Fatal("no completion")
	return 0
}

// data sends bytes to the Conn's first buffer at an offset.
func (p *rawPeer) data(off int, b []byte) verbs.Status {
	p.t.Helper()
	return p.post(p.theirs.buf.addr+uint64(off), p.theirs.buf.key, imm(immData, uint32(len(b))), b)
}

func (p *rawPeer) ctrl(v uint32) verbs.Status {
	p.t.Helper()
	return p.post(0xbad, 0xbad, imm(immCtrl, v), nil)
}

func (p *rawPeer) poll() {
	var wcs [16]verbs.WC
	for {
		n, err := p.cq.Poll(wcs[:])
		require.NoError(p.t, err)
		if n == 0 {
			return
		}
		p.wcs = append(p.wcs, wcs[:n]...)
	}
}

// take returns the next message of the Conn.
func (p *rawPeer) take() verbs.WC {
	p.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		p.poll()
		for i, wc := range p.wcs {
			if wc.ID == 1<<40 {
				p.wcs = append(p.wcs[:i], p.wcs[i+1:]...)
				require.Equal(p.t, verbs.Success, wc.Status)
				require.Equal(p.t, verbs.WCRecvWithImm, wc.Op)
				p.recv(1)
				return wc
			}
		}
	}
	p.t.Fatal("no message")
	return verbs.WC{}
}

func (p *rawPeer) nothing(d time.Duration) {
	p.t.Helper()
	time.Sleep(d)
	p.poll()
	for _, wc := range p.wcs {
		if wc.ID == 1<<40 {
			p.t.Fatalf("message %#x", wc.Imm)
		}
	}
}

func readN(t testing.TB, c *Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	return b
}

// publish sends an update of flow control to the Conn.
func (p *rawPeer) publish(limit uint32, d *descriptor, entry int) {
	p.t.Helper()
	require.Equal(p.t, verbs.Success, p.tryPublish(limit, d, entry))
}

func (p *rawPeer) tryPublish(limit uint32, d *descriptor, entry int) verbs.Status {
	p.t.Helper()
	if d == nil {
		return p.post(0x64, 0xde2e8de0, immSGL<<immShift|limit, nil)
	}
	b := d.append(nil, order(p.theirs.bigEndian))
	return p.post(p.theirs.sgl.addr+uint64(entry)*descriptorLen, p.theirs.sgl.key, immSGL<<immShift|limit, b)
}
