package ring

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestHello: what a Conn says in its private data, in both roles.
func TestHello(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	check := func(b []byte, net byte) {
		require.Equal(t, []byte{1, net}, b[:2], "version 1, no iomap")
		require.Equal(t, make([]byte, 4), b[4:8], "reserved, no iomap slots")
		d, err := parseConnData(b)
		require.NoError(t, err)
		require.GreaterOrEqual(t, d.credits, uint16(16))
		require.EqualValues(t, sglEntries, d.sgl.length)
		require.EqualValues(t, segInitial, d.buf.length)
		require.NotEqual(t, d.sgl.key, d.buf.key)
	}
	for _, big := range []bool{false, true} {
		ch := w.accept()
		p := newRaw(t, w.resolve(), 32)
		d := p.hello(16)
		d.bigEndian = big
		rep, err := p.id.Connect(context.Background(), connParam(d.appendTo(nil)))
		require.NoError(t, err)
		s := <-ch
		require.NoError(t, s.err)
		net := byte(0)
		if big {
			net = flagNet // the server mirrors the bit
		}
		check(rep.PrivateData, net)
		require.EqualValues(t, 7, rep.RNRRetryCount)
		require.NoError(t, s.c.SetLinger(0))
		require.NoError(t, s.c.Close())
	}
	go func() {
		id, err := w.ln.GetRequest(context.Background())
		if !assert.NoError(t, err) {
			return
		}
		req := id.Request()
		assert.EqualValues(t, 7, req.RNRRetryCount)
		assert.EqualValues(t, 0, req.ResponderResources)
		assert.EqualValues(t, 0, req.InitiatorDepth)
		assert.True(t, req.FlowControl)
		check(req.PrivateData, 0)
		assert.NoError(t, id.Reject([]byte("no")))
		assert.NoError(t, id.Close())
	}()
	_, err := Client(context.Background(), w.resolve(), nil)
	var rej *verbs.RejectError
	require.ErrorAs(t, err, &rej)
	require.Equal(t, verbs.RejConsumer, rej.Reason)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// TestVersions: a request of another version, or without private data, is rejected with reason
// 28; an answer of another version ends the attempt.
func TestVersions(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	before := ProtocolErrors()
	for i, hello := range [][]byte{{2}, {}, make([]byte, connDataLen), {1, 0, 0, 0}} {
		ch := w.accept()
		p := newRaw(t, w.resolve(), 16)
		_, err := p.id.Connect(context.Background(), connParam(hello))
		var rej *verbs.RejectError
		require.ErrorAs(t, err, &rej, "%d", i)
		require.Equal(t, verbs.RejConsumer, rej.Reason)
		require.ErrorIs(t, (<-ch).err, ErrProtocol)
	}
	raw := w.rawServer(16, func(b []byte) { b[0] = 2 })
	_, err := Client(context.Background(), w.resolve(), nil)
	require.ErrorIs(t, err, ErrProtocol)
	p := <-raw
	ev := <-p.events
	if ev.Type == verbs.EventEstablished {
		ev = <-p.events
	}
	require.Equal(t, verbs.EventDisconnected, ev.Type)
	require.Equal(t, before+5, ProtocolErrors())

	// Nobody else notices.
	c, s := w.pair()
	write(t, c, []byte("fine"))
	require.Equal(t, "fine", string(readN(t, s, 4)))
}

// TestDescriptorsOnTheWire: a Conn publishes into entries 1, 2, 3, 0 of a target SGL of
// four, all 16 bytes in one WRITE WITH IMMEDIATE, in the byte order of its owner.
func TestDescriptorsOnTheWire(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, big := range []bool{false, true} {
		p, s := w.rawClient(16, 64, func(b []byte) {
			if big {
				b[1] = flagNet
			}
		})
		require.Equal(t, big, p.theirs.bigEndian)
		cur := p.theirs.buf
		written, limit := 0, uint32(p.theirs.credits)
		var next []descriptor
		entry := 1
		for round := range 12 {
			n := int(cur.length)
			half := n / 2
			for _, part := range [][2]int{{0, half}, {half, n - half}} {
				b := pattern(written, part[1])
				require.Equal(t, verbs.Success, p.post(cur.addr+uint64(part[0]), cur.key, imm(immData, uint32(part[1])), b))
				written += part[1]
			}
			require.Equal(t, pattern(written-n, n), readN(t, s, n), "round %d", round)
			for len(next) == 0 {
				wc := p.take()
				typ, v := parseImm(wc.Imm)
				require.EqualValues(t, immSGL, typ)
				require.GreaterOrEqual(t, v, limit, "limits never decrease")
				require.LessOrEqual(t, int(v), 2*round+2+windowMax)
				limit = v
				if wc.ByteLen == 0 {
					continue
				}
				require.EqualValues(t, descriptorLen, wc.ByteLen)
				mem := p.mem[entry*descriptorLen : (entry+1)*descriptorLen]
				next = append(next, parseDescriptor(mem, order(big)))
				clear(mem)
				entry = (entry + 1) % rawEntries
				for i := 1; i < rawEntries-1; i++ { // the next one may have been written by now
					e := (entry + i) % rawEntries * descriptorLen
					require.Equal(t, make([]byte, descriptorLen), p.mem[e:e+descriptorLen], "entry %d after %d", e/descriptorLen, entry)
				}
			}
			cur, next = next[0], next[1:]
		}
	}
}

// TestDataOnTheWire: a Conn fills descriptors completely and in order, in messages that
// stay inside one, and goes on with absolute, 16-bit, even 17-bit limits.
func TestDataOnTheWire(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, big := range []bool{false, true} {
		const credits = 16
		raw := w.rawServer(credits, func(b []byte) {
			if big {
				b[1] = flagNet // a server that does not mirror
			}
			binary.BigEndian.PutUint32(b[36:], 1000)
		})
		c, err := Client(context.Background(), w.resolve(), nil)
		require.NoError(t, err)
		p := <-raw
		require.False(t, p.theirs.bigEndian)
		total := 100000
		done := make(chan struct{})
		go func() {
			defer close(done)
			for off := 0; off < total; off += 500 {
				write(t, c, pattern(off, 500))
			}
			assert.NoError(t, c.CloseWrite())
		}()
		// The peer's buffer: regions of odd sizes, published into this side's entries 1, 0, 1 ...
		got := make([]byte, 0, total)
		msgs, limit, entry := 0, uint32(65536-100+credits), 1
		bufs := [][2]int{{0, 1000}} // offset in rawBuf, bytes left
		used := 1000
		p.publish(limit, nil, 0) // a limit alone, before any data
		for shut := false; !shut; {
			if msgs%7 == 0 {
				p.ctrl(5) // unknown: ignored
				require.Equal(t, verbs.Success, p.post(1, 1, imm(immInternal, 9), nil))
			}
			wc := p.take()
			typ, n := parseImm(wc.Imm)
			switch typ {
			case immSGL:
				continue // the Conn's own flow control
			case immCtrl:
				require.EqualValues(t, ctrlShutdown, n)
				shut = true
				continue
			}
			require.EqualValues(t, immData, typ)
			require.Equal(t, n, wc.ByteLen)
			require.Positive(t, n)
			require.NotEmpty(t, bufs)
			require.LessOrEqual(t, int(n), bufs[0][1], "beyond the descriptor")
			off := rawBuf + bufs[0][0]
			got = append(got, p.mem[off:off+int(n)]...)
			bufs[0][0] += int(n)
			bufs[0][1] -= int(n)
			msgs++
			if bufs[0][1] == 0 {
				bufs = bufs[1:]
			}
			if len(bufs) < 2 {
				size := 1 + (used*7)%1777
				if used+size > rawBufLen {
					used = 0
				}
				limit = 65536 - 100 + uint32(msgs) + credits // crosses 2^16
				p.publish(limit, &descriptor{addr: p.mr.Addr() + rawBuf + uint64(used), key: p.mr.RKey(), length: uint32(size)}, entry)
				bufs = append(bufs, [2]int{used, size})
				entry = (entry + 1) % sglEntries
				used += size
			}
		}
		<-done
		require.Equal(t, pattern(0, total), got)
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	}
}

// TestTolerated: what checklist items 16, 17, 19, 20 and 21 demand, and what C does.
func TestTolerated(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(64, 64, nil)
	ok := func(st verbs.Status) { t.Helper(); require.Equal(t, verbs.Success, st) }
	ok(p.send(verbs.SendWR{Op: verbs.OpWrite}, nil)) // keep-alive
	ok(p.post(0xbad, 0xbad, imm(immData, 0), nil))   // no bytes: no end of file
	p.publish(200, nil, 0)
	ok(p.data(0, []byte("abc")))
	ok(p.post(p.theirs.buf.addr+3, p.theirs.buf.key, imm(1, 3), []byte("def"))) // as C takes types 1, 3, 5
	ok(p.post(p.theirs.buf.addr+6, p.theirs.buf.key, imm(3, 3), []byte("ghi")))
	ok(p.post(p.theirs.buf.addr+9, p.theirs.buf.key, imm(5, 3), []byte("jkl")))
	ok(p.post(0, 0, imm(immIOMap, 0), nil))
	for v := range uint32(8) {
		if v != ctrlDisconnect && v != ctrlShutdown {
			ok(p.ctrl(v))
		}
	}
	require.Equal(t, "abcdefghijkl", string(readN(t, s, 12)))

	ok(p.data(12, []byte("more")))
	ok(p.ctrl(ctrlShutdown))
	p.publish(201, nil, 0)
	ok(p.data(16, []byte("after shutdown")))
	require.Equal(t, "moreafter shutdown", string(readN(t, s, 18)))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	write(t, s, []byte("the other way"))
	for {
		if wc := p.take(); wc.Imm>>immShift == immData {
			require.Equal(t, "the other way", string(p.mem[rawBuf:rawBuf+wc.ByteLen]))
			break
		}
	}
	ok(p.data(30, []byte("last")))
	ok(p.ctrl(ctrlDisconnect))
	p.publish(202, nil, 0)
	require.NoError(t, p.id.Disconnect())
	time.Sleep(10 * time.Millisecond)
	require.Equal(t, "last", string(readN(t, s, 4)))
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = s.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
}

// TestCredits: messages come back as credit without anybody reading, and in the middle
// of a segment; the receives for them are there.
func TestCredits(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(16, 64, nil)
	limit := uint32(p.theirs.credits)
	sent := uint32(0)
	for ; sent < 2000; sent++ {
		for limit == sent {
			wc := p.take()
			typ, v := parseImm(wc.Imm)
			require.EqualValues(t, immSGL, typ)
			require.Greater(t, v, limit)
			limit = v
		}
		require.Equal(t, verbs.Success, p.data(int(sent), []byte{byte(sent)}))
	}
	require.Equal(t, []byte{0, 1, 2}, readN(t, s, 3))
	require.Zero(t, p.qp.Stats().RNRs)
}

// TestEndsOnTheWire: SHUTDOWN and DISCONNECT as checklist items 23, 24 and 27 say.
func TestEndsOnTheWire(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	end := func(p *rawPeer, v uint32) {
		t.Helper()
		wc := p.take()
		for wc.Imm>>immShift != immCtrl {
			wc = p.take()
		}
		require.Equal(t, imm(immCtrl, v), wc.Imm)
		require.Zero(t, wc.ByteLen)
	}
	t.Run("SHUTDOWN, then DISCONNECT, then DREQ", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		require.NoError(t, s.CloseWrite())
		end(p, ctrlShutdown)
		require.NoError(t, s.Close())
		end(p, ctrlDisconnect)
		// The queue pair still acknowledges, for a while.
		require.Equal(t, verbs.Success, p.ctrl(ctrlShutdown))
	})
	t.Run("CloseWrite after SHUTDOWN is DISCONNECT", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		require.Equal(t, verbs.Success, p.ctrl(ctrlShutdown))
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, s.CloseWrite())
		end(p, ctrlDisconnect)
		require.NoError(t, s.Close())
	})
	t.Run("SHUTDOWN after SHUTDOWN needs no DISCONNECT", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		require.NoError(t, s.CloseWrite())
		end(p, ctrlShutdown)
		require.Equal(t, verbs.Success, p.ctrl(ctrlShutdown))
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, s.Close())
		require.Equal(t, verbs.EventDisconnected, (<-p.events).Type)
		p.nothing(10 * time.Millisecond)
	})
	t.Run("no word after the peer's DISCONNECT", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		require.Equal(t, verbs.Success, p.ctrl(ctrlDisconnect))
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, s.CloseWrite())
		require.NoError(t, s.Close())
		require.Equal(t, verbs.EventDisconnected, (<-p.events).Type)
		p.nothing(10 * time.Millisecond)
	})
	t.Run("a C peer that never sends DREQ", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		start := time.Now()
		require.NoError(t, s.Close())
		require.Less(t, time.Since(start), time.Second)
		end(p, ctrlDisconnect)
		require.Equal(t, verbs.EventDisconnected, (<-p.events).Type)
		require.NoError(t, Drain(t.Context()))
	})
	t.Run("DREQ alone wakes a reader with the end", func(t *testing.T) {
		p, s := w.rawClient(64, 64, nil)
		require.Equal(t, verbs.Success, p.data(0, []byte("bye")))
		got := make(chan []byte, 1)
		go func() {
			b, err := io.ReadAll(struct{ io.Reader }{s})
			assert.NoError(t, err)
			got <- b
		}()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, p.id.Disconnect())
		within(t, 5*time.Second, "reader", func() { assert.Equal(t, "bye", string(<-got)) })
		_, err := s.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

// TestRefused: nobody listens; and a set-up that is given up.
func TestRefused(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	id, err := w.a.Resolve(context.Background(), &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(w.addr[1], 1)})
	require.NoError(t, err)
	_, err = Client(context.Background(), id, nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	// A server that gives up, at any moment of the handshake.
	for i := range 40 {
		dialed := make(chan error, 1)
		go func() {
			c, err := Client(context.Background(), w.resolve(), nil)
			if err == nil {
				// The server was faster or slower than the client: it closes, by now or soon.
				_, err = c.Read(make([]byte, 1))
				_ = c.Close()
			}
			dialed <- err
		}()
		id, err := w.ln.GetRequest(context.Background())
		require.NoError(t, err)
		ch := make(chan accepted, 2)
		giveUp := Server(id, nil, func(c *Conn, err error) { ch <- accepted{c, err} })
		time.Sleep(time.Duration(i) * 5 * time.Microsecond)
		giveUp()
		giveUp()
		a := <-ch
		if a.err == nil {
			require.NoError(t, a.c.Close())
		} else {
			require.ErrorIs(t, a.err, net.ErrClosed)
		}
		within(t, 10*time.Second, "client", func() { assert.Error(t, <-dialed) })
		require.Empty(t, ch)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = Client(ctx, w.resolve(), nil) // nobody takes it
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
