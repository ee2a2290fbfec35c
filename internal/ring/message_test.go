package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestStreamsWithoutImmediates over good and bad networks, on simulated time.
func TestStreamsWithoutImmediates(t *testing.T) {
	us := time.Microsecond
	for name, o := range map[string]simnet.Options{
		"clean":      {Delay: 50 * us},
		"everything": {Delay: 100 * us, Jitter: 200 * us, Loss: 0.1, Dup: 0.1, Reorder: 0.1, Corrupt: 0.05},
	} {
		for _, seed := range seeds(t, 3) {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorldSeed(t, seed, o, nil)
					w.messages = true
					for _, buffers := range []int{0, minBuffer} { // wide windows, and full ones
						w.cfg = [2]Config{{ReadBuffer: buffers, WriteBuffer: buffers}, {ReadBuffer: buffers, WriteBuffer: buffers}}
						c, s := w.pair()
						exchange(t, seed, c, s, 300_000)
						require.NoError(t, c.Close())
						require.NoError(t, s.Close())
					}
				})
			})
		}
	}
}

// rawMessages is a raw peer without immediates: bytes of its receives lie in its memory at 0x10000.
func (w *world) rawMessages(credits uint16, big bool) (*rawPeer, *Conn, func() uint32) {
	w.t.Helper()
	w.messages = true
	ch := w.accept()
	p := newRaw(w.t, w.resolve(), 0)
	const at = rawBuf + rawBufLen
	var o binary.ByteOrder = binary.LittleEndian
	if big {
		o = binary.BigEndian
	}
	post := func(i uint64) {
		sge := verbs.SGE{Addr: p.mr.Addr() + at + i*4, Length: 4, LKey: p.mr.LKey()}
		n, err := p.qp.PostRecv([]verbs.RecvWR{{ID: 1<<40 | i, SGL: []verbs.SGE{sge}}})
		require.NoError(w.t, err)
		require.Equal(w.t, 1, n)
	}
	for i := range uint64(64) {
		post(i)
	}
	d := p.hello(credits)
	d.bigEndian = big
	param := connParam(d.appendTo(nil))
	param.InitiatorDepth = 1
	rep, err := p.id.Connect(context.Background(), param)
	require.NoError(w.t, err)
	require.EqualValues(w.t, 1, rep.ResponderResources+rep.InitiatorDepth, "%+v", rep)
	p.theirs, err = parseConnData(rep.PrivateData)
	require.NoError(w.t, err)
	s := <-ch
	require.NoError(w.t, s.err)
	w.t.Cleanup(func() { _, _ = s.c.SetLinger(0), s.c.Close() })
	return p, s.c, func() uint32 {
		w.t.Helper()
		var imm uint32
		require.Eventually(w.t, func() bool {
			p.poll()
			for i, wc := range p.wcs {
				if wc.ID>>40 == 1 {
					require.Equal(w.t, verbs.Success, wc.Status)
					require.Equal(w.t, verbs.WCRecv, wc.Op)
					require.EqualValues(w.t, 4, wc.ByteLen)
					imm = o.Uint32(p.mem[at+wc.ID&0xff*4:])
					post(wc.ID & 0xff)
					p.wcs = append(p.wcs[:i], p.wcs[i+1:]...)
					return true
				}
			}
			return false
		}, 10*time.Second, time.Millisecond)
		return imm
	}
}

// message is what rsockets sends instead of an immediate, behind a write.
func (p *rawPeer) message(o byteOrder, imm uint32) {
	p.t.Helper()
	require.Equal(p.t, verbs.Success, p.send(verbs.SendWR{Op: verbs.OpSend}, o.AppendUint32(nil, imm)))
}

func (p *rawPeer) write(addr uint64, key uint32, b []byte) {
	p.t.Helper()
	require.Equal(p.t, verbs.Success, p.send(verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: addr, RKey: key}, b))
}

// TestMessagesOnTheWire: WRITEs and SENDs as librdmacm has them on iWARP, in the peer's byte order.
func TestMessagesOnTheWire(t *testing.T) {
	for _, big := range []bool{false, true} {
		t.Run(fmt.Sprint("big endian ", big), func(t *testing.T) {
			w := newWorld(t, simnet.Options{})
			o := order(big)
			p, s, take := w.rawMessages(16, big)

			p.write(p.theirs.buf.addr, p.theirs.buf.key, []byte("hello"))
			p.message(o, 5)
			require.Equal(t, "hello", string(readN(t, s, 5)))

			write(t, s, []byte("world!"))
			require.EqualValues(t, 6, take())
			require.Equal(t, "world!", string(p.mem[rawBuf:rawBuf+6]))

			// A descriptor, and limits alone before and behind it.
			entry := p.theirs.sgl.addr + descriptorLen
			p.message(o, immSGL<<immShift|20)
			p.write(entry, p.theirs.sgl.key, descriptor{addr: p.mr.Addr() + rawBuf + 5000, key: p.mr.RKey(), length: 300}.append(nil, o))
			p.message(o, immSGL<<immShift|20)
			p.message(o, immSGL<<immShift|0x10014) // 17 bits, as librdmacm counts
			write(t, s, make([]byte, rawBufLen-6))
			write(t, s, pattern(0, 300))
			for got := uint32(0); got < rawBufLen-6+300; {
				n := take()
				require.Less(t, n, uint32(1<<29), "%#x", n)
				got += n
			}
			require.Equal(t, pattern(0, 300), p.mem[rawBuf+5000:rawBuf+5300])

			// Half of its first segment is full: the Conn publishes another.
			p.write(p.theirs.buf.addr+5, p.theirs.buf.key, pattern(0, segInitial/2))
			p.message(o, segInitial/2)
			require.Equal(t, uint32(immSGL<<immShift|windowInitial+2), take())
			d := parseDescriptor(p.mem[descriptorLen:], o)
			require.True(t, d.valid() && d.length >= segInitial, "%+v", d)
			readN(t, s, segInitial/2)

			p.message(o, immCtrl<<immShift|ctrlShutdown)
			_, err := s.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, s.CloseWrite())
			require.Equal(t, uint32(immCtrl<<immShift|ctrlDisconnect), take())
		})
	}
}

// TestHostileMessages: rules that a device without immediates does not hold for us.
func TestHostileMessages(t *testing.T) {
	for name, act := range map[string]func(p *rawPeer){
		"too short": func(p *rawPeer) { p.send(verbs.SendWR{Op: verbs.OpSend}, []byte{1, 2, 3}) },
		"too long":  func(p *rawPeer) { p.send(verbs.SendWR{Op: verbs.OpSend}, make([]byte, 5)) },
		"more than published": func(p *rawPeer) {
			p.send(verbs.SendWR{Op: verbs.OpSend}, binary.LittleEndian.AppendUint32(nil, segInitial+1))
		},
		"descriptor around the end of memory": func(p *rawPeer) {
			d := descriptor{addr: 1<<64 - 100, key: 1, length: 1000}
			p.write(p.theirs.sgl.addr+descriptorLen, p.theirs.sgl.key, d.append(nil, binary.LittleEndian))
			p.send(verbs.SendWR{Op: verbs.OpSend}, binary.LittleEndian.AppendUint32(nil, immSGL<<immShift|100))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, simnet.Options{})
			p, s, _ := w.rawMessages(16, false)
			before := ProtocolErrors()
			act(p)
			require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, err := s.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, before+1, ProtocolErrors())
			_, err = s.Write([]byte{1})
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
	t.Run("bytes that were not written are zero", func(t *testing.T) {
		w := newWorld(t, simnet.Options{})
		p, s, _ := w.rawMessages(16, false)
		p.message(binary.LittleEndian, 4000)
		require.Equal(t, make([]byte, 4000), readN(t, s, 4000))
	})
}

// TestOneSideWithoutImmediates: the ends must agree, and see that they do not.
func TestOneSideWithoutImmediates(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	w.cfg[0].Messages = true
	c, s := w.pair()
	_, _ = c.Write([]byte("hello"))
	require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := s.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrProtocol)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}
