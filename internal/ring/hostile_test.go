package ring

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// TestHostile: whoever breaks the rules loses its connection, is counted, and nobody
// else notices.
func TestHostile(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	c, s := w.pair() // a bystander
	buf := func(p *rawPeer) (uint64, uint32) { return p.theirs.buf.addr, p.theirs.buf.key }
	for name, act := range map[string]func(p *rawPeer){
		"more than published": func(p *rawPeer) {
			a, k := buf(p)
			p.post(a, k, imm(immData, segInitial+1), make([]byte, segInitial))
		},
		"announced and not written": func(p *rawPeer) {
			p.post(0, 0, imm(immData, 1000), nil)
		},
		"written and not announced": func(p *rawPeer) {
			a, k := buf(p)
			p.post(a, k, imm(immData, 1), make([]byte, 100))
		},
		"beyond a full descriptor": func(p *rawPeer) {
			p.data(0, make([]byte, segInitial))
			a, k := buf(p)
			// As long as the next descriptor, and longer than the rest of any.
			p.post(a, k, imm(immData, segInitial), make([]byte, segInitial))
			p.post(a, k, imm(immData, segInitial), make([]byte, segInitial))
			p.post(a, k, imm(immData, segInitial), make([]byte, segInitial))
			p.post(a, k, imm(immData, segInitial), make([]byte, segInitial))
			p.post(a, k, imm(immData, segInitial), make([]byte, segInitial))
		},
		"largest immediate": func(p *rawPeer) { p.post(0, 0, imm(immData, immValue), nil) },
		"descriptor of no bytes": func(p *rawPeer) {
			p.tryPublish(100, &descriptor{addr: 1, key: 1}, 1)
		},
		"descriptor around the end of memory": func(p *rawPeer) {
			p.tryPublish(100, &descriptor{addr: 1<<64 - 100, key: 1, length: 1000}, 1)
		},
		"descriptors overwritten": func(p *rawPeer) {
			d := descriptor{addr: p.mr.Addr(), key: p.mr.RKey(), length: 100}
			p.publish(100, &d, 1)
			p.tryPublish(100, &d, 0)
		},
		"half a descriptor": func(p *rawPeer) {
			p.post(p.theirs.sgl.addr+16, p.theirs.sgl.key, imm(immSGL, 100), make([]byte, 8))
		},
		"SEND": func(p *rawPeer) { p.send(verbs.SendWR{Op: verbs.OpSend}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			before := ProtocolErrors()
			p, victim := w.rawClient(64, 64, nil)
			defer func() { _ = victim.Close() }()
			act(p)
			require.NoError(t, victim.SetDeadline(time.Now().Add(5*time.Second)))
			_, err := io.ReadAll(struct{ io.Reader }{victim})
			require.ErrorIs(t, err, ErrProtocol)
			_, err = victim.Write([]byte("x"))
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, before+1, ProtocolErrors())
			// The peer's queue pair is broken, too.
			require.Eventually(t, func() bool { return p.send(verbs.SendWR{Op: verbs.OpWrite}, nil) != verbs.Success }, 5*time.Second, time.Millisecond)
		})
	}
	// Violations that the device itself refuses.
	for name, act := range map[string]func(p *rawPeer) verbs.Status{
		"outside of memory": func(p *rawPeer) verbs.Status {
			a, k := buf(p)
			return p.post(a+segInitial-1, k, imm(immData, 2), make([]byte, 2))
		},
		"another connection's key": func(p *rawPeer) verbs.Status {
			return p.post(p.theirs.buf.addr, p.theirs.buf.key^1, imm(immData, 2), make([]byte, 2))
		},
		"beyond the target SGL": func(p *rawPeer) verbs.Status {
			return p.post(p.theirs.sgl.addr+32, p.theirs.sgl.key, imm(immIOMap, 0), make([]byte, 24))
		},
		"SEND of bytes": func(p *rawPeer) verbs.Status { return p.send(verbs.SendWR{Op: verbs.OpSend}, make([]byte, 5)) },
	} {
		t.Run(name, func(t *testing.T) {
			p, victim := w.rawClient(64, 64, nil)
			require.NotEqual(t, verbs.Success, act(p))
			require.NoError(t, victim.SetDeadline(time.Now().Add(5*time.Second)))
			_, err := victim.Read(make([]byte, 1))
			if name == "SEND of bytes" {
				require.ErrorIs(t, err, ErrProtocol)
			} else {
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
		})
	}
	write(t, c, []byte("fine"))
	require.Equal(t, "fine", string(readN(t, s, 4)))
}

// TestStaleMemory: a peer that makes a Conn believe in bytes it has not written finds
// none of what others had there.
func TestStaleMemory(t *testing.T) {
	w := newWorld(t, simnet.Options{})
	secret := []byte("a secret of somebody else's")
	for range 5 {
		c, s := w.pair()
		for range 40 {
			write(t, c, secret)
		}
		readN(t, s, 40*len(secret))
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		require.NoError(t, Drain(t.Context()))
		p, victim := w.rawClient(64, 64, nil)
		// Announced and written, but not where it is announced: at the end of the segment.
		b := make([]byte, 2000)
		require.Equal(t, verbs.Success, p.post(p.theirs.buf.addr+segInitial-2000, p.theirs.buf.key, imm(immData, 2000), b))
		require.Equal(t, b, readN(t, victim, 2000))
		require.NoError(t, victim.SetLinger(0))
		require.NoError(t, victim.Close())
		require.NoError(t, Drain(t.Context()))
	}
}
