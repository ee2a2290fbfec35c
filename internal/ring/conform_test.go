package ring

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/ibcm"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// dataMessage returns the next message of data.
func (p *rawPeer) dataMessage() verbs.WC {
	p.t.Helper()
	for {
		wc := p.take()
		if typ, _ := parseImm(wc.Imm); typ == immData {
			return wc
		}
	}
}

// TestPrivateDataMayBeLonger: providers pad it with zeros or not at all, and a later version
// of the peer may say more.
func TestPrivateDataMayBeLonger(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, n := range []int{1, 8, verbs.MaxPrivateREQ - connDataLen} {
		ch := w.accept()
		p := newRaw(t, w.resolve(), 32)
		d := p.hello(16)
		hello := d.appendTo(nil)
		for range n {
			hello = append(hello, 0xff)
		}
		rep, err := p.id.Connect(context.Background(), connParam(hello))
		require.NoError(t, err)
		_, err = parseConnData(rep.PrivateData)
		require.NoError(t, err)
		s := <-ch
		require.NoError(t, s.err)
		require.NoError(t, s.c.SetLinger(0))
		require.NoError(t, s.c.Close())
	}
	// Other providers than this one do not pad.
	hello := unhex(t, helloServer)
	want, err := parseConnData(hello)
	require.NoError(t, err)
	for len(hello) < verbs.MaxPrivateREP {
		hello = append(hello, 0xff)
		d, err := parseConnData(hello)
		require.NoError(t, err, "%d bytes", len(hello))
		require.Equal(t, want, d)
	}
}

// TestDescriptorsOfEitherByteOrder: a peer writes descriptors in the order that was announced to it.
func TestDescriptorsOfEitherByteOrder(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, big := range []bool{false, true} {
		p, s := w.rawClient(16, 64, func(b []byte) {
			if big {
				b[1] = flagNet
			}
			binary.BigEndian.PutUint32(b[36:], 10) // bytes of the first buffer
		})
		write(t, s, pattern(0, 30))
		require.EqualValues(t, 10, p.dataMessage().ByteLen)
		p.publish(100, &descriptor{addr: p.mr.Addr() + rawBuf + 5000, key: p.mr.RKey(), length: 0x000114}, 1)
		require.EqualValues(t, 20, p.dataMessage().ByteLen)
		require.Equal(t, pattern(10, 20), p.mem[rawBuf+5000:rawBuf+5020])
	}
}

// cmMessage tells whether a packet is a message of the connection manager.
func cmMessage(f *simnet.Frame, attr ibcm.Attr) bool {
	const at = wire.BTHLen + wire.DETHLen + 16
	return len(f.Data) > at+2 && f.Data[0] == byte(wire.UDSendOnly) && binary.BigEndian.Uint16(f.Data[at:]) == uint16(attr)
}

// TestDataBeforeRTU: it says that the connection stands, as the RTU would have, and is read.
func TestDataBeforeRTU(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	t.Cleanup(w.net.Filter(func(f *simnet.Frame) bool { return cmMessage(f, ibcm.AttrRTU) }))
	ch := w.accept()
	c, err := Client(context.Background(), w.resolve(), nil)
	require.NoError(t, err)
	require.Empty(t, ch)
	write(t, c, []byte("early"))
	within(t, time.Second, "the server's end", func() {
		s := <-ch
		if assert.NoError(t, s.err) {
			assert.Equal(t, "early", string(readN(t, s.c, 5)))
			assert.NoError(t, s.c.Close())
		}
	})
	require.NoError(t, c.Close())
}

// TestDREPNeverComes: nobody waits for it.
func TestDREPNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
		c, s := w.pair()
		t.Cleanup(w.net.Filter(func(f *simnet.Frame) bool { return cmMessage(f, ibcm.AttrDREP) }))
		write(t, c, []byte("x"))
		start := time.Now()
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		require.NoError(t, Drain(t.Context()))
		require.Less(t, time.Since(start), 2*holdTime)
	})
}

// TestNothingIsWrittenAsNothing: no message has no bytes.
func TestNothingIsWrittenAsNothing(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(16, 64, nil)
	n, err := s.Write(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = s.WriteBuffers(&net.Buffers{nil, {}})
	require.NoError(t, err)
	_, err = s.ReadFrom(eofReader{})
	require.NoError(t, err)
	write(t, s, []byte("x"))
	wc := p.take()
	require.Equal(t, imm(immData, 1), wc.Imm)
	require.EqualValues(t, 1, wc.ByteLen)
	require.EqualValues(t, 1, s.Stats().MessagesWritten)
}

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) { return 0, io.EOF }

// TestDescriptorIsUsedUpBeforePosting: the peer may overwrite an entry as soon as the write that fills
// its buffer is posted, so that by then the Conn is done with it.
func TestDescriptorIsUsedUpBeforePosting(t *testing.T) {
	for name, size := range map[string]int{"inline": 10, "staged": nicInline + 10} {
		t.Run(name, func(t *testing.T) {
			p := newScriptedPeer(t, newNIC(), []byte{0, 64, 2, 0}) // a first buffer of 1 byte
			posted := p.link.posted
			full := 0
			p.link.posted = func(wr *verbs.SendWR, b []byte) error {
				if wr.Imm>>immShift == immData {
					end := wr.RemoteAddr + uint64(len(b))
					w := &p.c.tx.win
					require.True(t, w.n == 0 || w.desc[0].addr >= end || w.desc[0].addr+uint64(w.desc[0].length) <= wr.RemoteAddr,
						"%+v is posted and not yet taken from %+v", wr, w.desc)
					full++
				}
				return posted(wr, b)
			}
			p.appWrite(1)
			for range 20 {
				p.run([]byte{peerPublish, byte(size), 0, peerFlush, peerAck, 9, appWrite, byte(size - 1), 0, peerFlush})
			}
			require.Equal(t, 21, full)
			p.end()
		})
	}
}

// TestUpdatesAreUsedAfterSHUTDOWN: the peer sends no more data and goes on reading.
func TestUpdatesAreUsedAfterSHUTDOWN(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(4, 64, func(b []byte) { binary.BigEndian.PutUint32(b[36:], 10) })
	require.Equal(t, verbs.Success, p.ctrl(ctrlShutdown))
	require.Equal(t, verbs.Success, p.ctrl(ctrlShutdown)) // C sends it as often as it is asked to
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	write(t, s, pattern(0, 100))
	require.EqualValues(t, 10, p.dataMessage().ByteLen)
	p.publish(100, &descriptor{addr: p.mr.Addr() + rawBuf, key: p.mr.RKey(), length: 50}, 1)
	require.EqualValues(t, 50, p.dataMessage().ByteLen)
	p.publish(101, &descriptor{addr: p.mr.Addr() + rawBuf, key: p.mr.RKey(), length: 50}, 0)
	require.EqualValues(t, 40, p.dataMessage().ByteLen)
	require.Equal(t, pattern(60, 40), p.mem[rawBuf:rawBuf+40])
}

// TestUpdateAfterDISCONNECT is no offence: C sends such, while it waits for its DISCONNECT to be acknowledged.
func TestUpdateAfterDISCONNECT(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	before := ProtocolErrors()
	p, s := w.rawClient(16, 64, nil)
	require.Equal(t, verbs.Success, p.data(0, []byte("last")))
	require.Equal(t, verbs.Success, p.ctrl(ctrlDisconnect))
	p.publish(200, nil, 0)
	p.publish(201, &descriptor{addr: p.mr.Addr() + rawBuf, key: p.mr.RKey(), length: 50}, 1)
	require.Equal(t, "last", string(readN(t, s, 4)))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = s.Write(make([]byte, 1))
	require.ErrorIs(t, err, syscall.EPIPE)
	require.Equal(t, verbs.Success, p.ctrl(9), "the queue pair lives")
	require.Equal(t, before, ProtocolErrors())
}

// TestDISCONNECTWakesAWriter that waits for space, and so does DREQ.
func TestDISCONNECTWakesAWriter(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for name, end := range map[string]func(p *rawPeer){
		"DISCONNECT": func(p *rawPeer) { p.ctrl(ctrlDisconnect) },
		"DREQ":       func(p *rawPeer) { assert.NoError(t, p.id.Disconnect()) },
	} {
		t.Run(name, func(t *testing.T) {
			p, s := w.rawClient(16, 64, nil)
			errs := make(chan error, 1)
			go func() {
				_, err := s.Write(make([]byte, 4<<20)) // more than there is room for
				errs <- err
			}()
			require.Eventually(t, func() bool { return s.Stats().Parks > 0 }, 5*time.Second, time.Millisecond)
			time.Sleep(50 * time.Millisecond) // nothing else is to come that would wake it
			end(p)
			within(t, 5*time.Second, "the writer", func() { assert.ErrorIs(t, <-errs, syscall.EPIPE) })
		})
	}
}

// TestCloseAfterDISCONNECTDoesNotWait: a peer that has said it may be gone, and acknowledges nothing more.
func TestCloseAfterDISCONNECTDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
		c, s := w.pair()
		write(t, s, make([]byte, 100_000)) // more than c has room for
		c.tx.mu.Lock()
		c.tx.end = endDisconnect
		c.pump()
		c.tx.mu.Unlock()
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		w.net.Partition(w.addr[0], w.addr[1])
		start := time.Now()
		require.NoError(t, s.Close())
		require.Zero(t, time.Since(start))
		require.NoError(t, c.SetLinger(0))
		require.NoError(t, c.Close())
	})
}

// TestCloseReadIsNotOnTheWire: what the peer sees is that it may go on.
func TestCloseReadIsNotOnTheWire(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	p, s := w.rawClient(16, 64, nil)
	require.Equal(t, verbs.Success, p.data(0, []byte("unread")))
	require.NoError(t, s.CloseRead())
	_, err := s.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	p.nothing(20 * time.Millisecond)
	require.Equal(t, verbs.Success, p.data(6, make([]byte, segInitial-6)))
	_, err = s.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	wc := p.take() // its buffer, once more
	require.EqualValues(t, immSGL, wc.Imm>>immShift)
	require.EqualValues(t, descriptorLen, wc.ByteLen)
	p.nothing(5 * time.Millisecond)
	write(t, s, []byte("x"))
	require.Equal(t, imm(immData, 1), p.take().Imm)
}

// TestTwoConnectionsInARow is what rstream does: two connections, one after the other, each
// of which begins with 16 bytes both ways and ends with both directions at once.
func TestTwoConnectionsInARow(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	for _, size := range []int{64, 16 << 10} {
		p, s := w.rawClient(384, 400, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b := make([]byte, size)
			for _, n := range []int{16, size} {
				if _, err := io.ReadFull(s, b[:n]); !assert.NoError(t, err) {
					return
				}
				write(t, s, b[:n])
			}
			_, err := s.Read(b)
			assert.Equal(t, io.EOF, err)
			assert.NoError(t, s.Close())
		}()
		require.Equal(t, verbs.Success, p.data(0, pattern(0, 16)))
		require.EqualValues(t, 16, p.dataMessage().ByteLen)
		first := min(size, segInitial-16)
		require.Equal(t, verbs.Success, p.data(16, pattern(16, first)))
		if rest := size - first; rest > 0 {
			for {
				wc := p.take()
				if wc.ByteLen == descriptorLen {
					break
				}
			}
			d := parseDescriptor(p.mem[descriptorLen:], order(false))
			require.Equal(t, verbs.Success, p.post(d.addr, d.key, imm(immData, uint32(rest)), pattern(16+first, rest)))
		}
		for got := 0; got < size; {
			got += int(p.dataMessage().ByteLen)
		}
		require.Equal(t, pattern(0, 16), p.mem[rawBuf:rawBuf+16])
		require.Equal(t, pattern(16, size), p.mem[rawBuf+16:rawBuf+16+size])
		require.Equal(t, verbs.Success, p.ctrl(ctrlDisconnect))
		<-done
	}
}

// TestRNRTimerIsShort: rdma_cm's default would keep a peer that met no receive waiting for 655 ms.
func TestRNRTimerIsShort(t *testing.T) {
	p := newScriptedPeer(t, newNIC(), []byte{0, 64, 2, 0})
	require.Positive(t, p.link.attr.MinRNRTimer)
	require.LessOrEqual(t, p.link.attr.MinRNRTimer, uint8(12), "0.64 ms")
	p.end()
}

// TestCloseWaitsForTheAcknowledgement of the data and of DISCONNECT, and what is lost is sent again.
func TestCloseWaitsForTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simnet.Options{Delay: 50 * time.Microsecond})
		c, s := w.pair()
		w.net.Partition(w.addr[0], w.addr[1])
		write(t, c, []byte("last words"))
		start := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, defaultLinger, time.Since(start))
		time.Sleep(3 * time.Second)
		w.net.Heal(w.addr[0], w.addr[1])
		readAll(t, s, []byte("last words"))
		require.NoError(t, s.Close())
	})
}
