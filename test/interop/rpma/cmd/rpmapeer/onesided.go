package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/go-rdma/rdma/rpma"
	"github.com/go-rdma/rdma/rpma/pmem"
)

const (
	size  = 100001
	part  = 1000
	parts = 9 // and one that is signaled: a send queue of 10
)

var ranges = []struct{ off, n int }{{0, size}, {1, 1}, {4095, 2}, {size - 1, 1}, {77, 40000}, {size, 0}}

func serveRead(s *side) {
	m := s.alloc(size, rpma.ReadSrc)
	copy(m.Bytes(), pattern(size, 1))
	s.listen()
	s.nextRequest()
	s.acceptOffering(m, false)
	s.end(false)
	expectPattern(m.Bytes(), 1)
}

func dialRead(s *side) {
	m := s.alloc(size, rpma.ReadDst)
	want := pattern(size, 1)
	s.dial(nil)
	s.takeOffer()
	check(s.remote.Size() == size, "%d bytes offered", s.remote.Size())
	for i, r := range ranges {
		clear(m.Bytes())
		s.post(rpma.Read(m.Slice(r.off, r.n), s.remote.Slice(uint64(r.off), r.n)), uint64(i+1), rpma.CompletionAlways)
		s.expect(s.conn.CQ(), uint64(i+1))
		check(bytes.Equal(m.Bytes()[r.off:r.off+r.n], want[r.off:r.off+r.n]), "READ of %v", r)
	}
	s.post(rpma.Read(rpma.Local{}, rpma.Remote{}), 50, rpma.CompletionAlways)
	s.expect(s.conn.CQ(), 50)
	clear(m.Bytes())
	for i := range parts + 1 {
		flags := rpma.CompletionOnError
		if i == parts {
			flags = rpma.CompletionAlways
		}
		s.post(rpma.Read(m.Slice(i*part, part), s.remote.Slice(uint64(i*part), part)), uint64(100+i), flags)
	}
	s.expect(s.conn.CQ(), 100+parts)
	expectPattern(m.Bytes()[:(parts+1)*part], 1)
	expectNone(s.conn.CQ())
	s.end(true)
	fmt.Println("read", size, "bytes")
}

func serveWrite(s *side) {
	m := s.alloc(size, rpma.WriteDst)
	s.listen()
	s.nextRequest()
	try(s.req.PostRecv(rpma.Local{}, 1))
	try(s.req.PostRecv(rpma.Local{}, 2))
	s.acceptOffering(m, false)
	for i := range uint64(2) {
		c := s.expect(s.conn.CQ(), i+1)
		check(c.HasImm, "no immediate data")
		fmt.Printf("%d bytes with %#x\n", c.Bytes, c.Imm)
		expectPattern(m.Bytes(), 2)
	}
	s.end(false)
}

func dialWrite(s *side) {
	m := s.alloc(size, rpma.WriteSrc)
	copy(m.Bytes(), pattern(size, 2))
	s.dial(nil)
	s.takeOffer()
	for i, r := range ranges {
		s.post(rpma.Write(s.remote.Slice(uint64(r.off), r.n), m.Slice(r.off, r.n)), uint64(i+1), rpma.CompletionAlways)
		s.expect(s.conn.CQ(), uint64(i+1))
	}
	s.post(rpma.Write(rpma.Remote{}, rpma.Local{}), 50, rpma.CompletionAlways)
	s.expect(s.conn.CQ(), 50)
	for i := range parts + 1 {
		flags := rpma.CompletionOnError
		if i == parts {
			flags = rpma.CompletionAlways
		}
		s.post(rpma.Write(s.remote.Slice(uint64(i*part), part), m.Slice(i*part, part)), uint64(100+i), flags)
	}
	s.expect(s.conn.CQ(), 100+parts)
	s.post(rpma.WriteImm(s.remote.Slice(5, 1000), m.Slice(5, 1000), 0xa1b2c3d4), 200, rpma.CompletionAlways)
	s.expect(s.conn.CQ(), 200)
	s.post(rpma.WriteImm(rpma.Remote{}, rpma.Local{}, 7), 201, rpma.CompletionAlways)
	s.expect(s.conn.CQ(), 201)
	expectNone(s.conn.CQ())
	s.end(true)
	fmt.Println("wrote", size, "bytes")
}

func serveFlush(s *side) {
	m, unmap := s.persistent(size, rpma.WriteDst|rpma.FlushVisibility|rpma.FlushPersistent)
	defer unmap()
	s.listen()
	s.nextRequest()
	s.acceptOffering(m, true)
	s.end(false)
	expectPattern(m.Bytes(), 3)
	fmt.Println("flushed")
	try(m.Close())
}

// persistent is memory of a file.
func (s *side) persistent(n int, u rpma.Usage) (m *rpma.MR, unmap func()) {
	f, err := os.CreateTemp("", "rpmapeer-")
	try(err)
	try(os.Remove(f.Name()))
	try(f.Truncate(int64(n)))
	p, err := pmem.Map(f, 0, n)
	try(err)
	m, err = s.peer.RegisterPersistent(p.Bytes(), u, p.PersistBytes)
	try(err)
	return m, func() { try(p.Close()) }
}

func dialFlush(s *side) {
	m := s.alloc(size, rpma.WriteSrc)
	copy(m.Bytes(), pattern(size, 3))
	s.dial(nil)
	s.takeOffer()
	const both = rpma.FlushVisibility | rpma.FlushPersistent
	check(s.remote.Usage()&both == both, "usage %#x", s.remote.Usage())
	_, err := s.tryPost(rpma.Flush(s.remote.Slice(0, 8), rpma.Persistent), 1, rpma.CompletionAlways)
	mustFail(rpma.ErrNotSupported, err)
	var pc rpma.PeerConfig
	try(pc.UnmarshalBinary(s.conn.PrivateData()[rpma.DescriptorSize:]))
	check(pc.DirectWriteToPMem, "no direct write to persistent memory")
	s.conn.ApplyPeerConfig(pc)
	const half = size / 2
	for i, t := range []rpma.FlushType{rpma.Visibility, rpma.Persistent} {
		off, n := i*half, half
		if i == 1 {
			n = size - half
		}
		s.post(rpma.Write(s.remote.Slice(uint64(off), n), m.Slice(off, n)), uint64(10+i), rpma.CompletionOnError)
		s.post(rpma.Flush(s.remote.Slice(uint64(off), n), t), uint64(20+i), rpma.CompletionAlways)
		s.expect(s.conn.CQ(), uint64(20+i))
	}
	// librpma's own flush reads 8 bytes from its offset on, and fails here.
	try(s.conn.Do(s.ctx, rpma.Flush(s.remote.Slice(size-1, 1), rpma.Visibility)))
	expectNone(s.conn.CQ())
	s.end(true)
	fmt.Println("flushed")
}

func serveNoFlush(s *side) {
	m := s.alloc(4096, rpma.WriteDst|rpma.FlushVisibility)
	s.listen()
	s.nextRequest()
	s.acceptOffering(m, true)
	s.end(false)
}

func dialNoFlush(s *side) {
	s.dial(nil)
	s.takeOffer()
	s.conn.ApplyPeerConfig(rpma.PeerConfig{DirectWriteToPMem: true})
	_, err := s.tryPost(rpma.Flush(s.remote.Slice(0, 8), rpma.Persistent), 1, rpma.CompletionAlways)
	mustFail(rpma.ErrNotSupported, err)
	s.post(rpma.Flush(s.remote.Slice(0, 8), rpma.Visibility), 2, rpma.CompletionAlways)
	s.expect(s.conn.CQ(), 2)
	s.end(true)
	fmt.Println("not persistent")
}

func serveAtomic(s *side) {
	m := s.alloc(4096, rpma.WriteDst|rpma.ReadSrc|rpma.FlushVisibility)
	s.listen()
	s.nextRequest()
	s.acceptOffering(m, false)
	s.end(false)
	fmt.Printf("log: %s\n", m.Bytes()[16:16+binary.LittleEndian.Uint64(m.Bytes()[8:])])
}

func dialAtomic(s *side) {
	m := s.alloc(4096, rpma.WriteSrc|rpma.ReadDst)
	s.dial(nil)
	s.takeOffer()
	_, err := s.tryPost(rpma.AtomicWrite(s.remote.Slice(12, 8), [8]byte{}), 1, rpma.CompletionAlways)
	mustFail(rpma.ErrInvalid, err)
	var used uint64
	for i, word := range []string{"alpha", "beta", "gamma", "delta"} {
		n := copy(m.Bytes(), word)
		at := s.remote.Slice(16+used, n)
		used += uint64(n)
		var v [8]byte
		binary.LittleEndian.PutUint64(v[:], used)
		ops := []rpma.Op{
			rpma.Write(at, m.Slice(0, n)),
			rpma.Flush(at, rpma.Visibility),
			rpma.AtomicWrite(s.remote.Slice(8, 8), v),
			rpma.Flush(s.remote.Slice(8, 8), rpma.Visibility),
		}
		for k := range ops[:3] {
			ops[k].Flags = rpma.CompletionOnError
		}
		ops[3].ID = uint64(10 + i)
		_, err := s.conn.Post(ops...)
		try(err)
		s.expect(s.conn.CQ(), uint64(10+i))
		try(s.conn.Do(s.ctx, rpma.Read(m.Slice(64, 8), s.remote.Slice(8, 8))))
		check(bytes.Equal(m.Bytes()[64:72], v[:]), "the counter is %x", m.Bytes()[64:72])
	}
	s.end(true)
	fmt.Println("used:", used)
}

func serveAccess(s *side) {
	m := s.alloc(4096, rpma.ReadSrc)
	copy(m.Bytes(), pattern(4096, 4))
	s.listen()
	for range 2 {
		s.nextRequest()
		s.acceptOffering(m, false)
		s.end(false)
	}
	expectPattern(m.Bytes(), 4)
	fmt.Println("unharmed")
}

func dialAccess(s *side) {
	m := s.alloc(8192, rpma.WriteSrc|rpma.ReadDst)
	for i := range 2 {
		s.dial(nil)
		desc := bytes.Clone(s.conn.PrivateData())
		desc[9] = 0x20 // 8 KiB
		desc[20] |= byte(rpma.WriteDst)
		var err error
		s.remote, err = rpma.ParseRemoteMR(desc)
		try(err)
		op := rpma.Read(m.Slice(0, 97), s.remote.Slice(4000, 97))
		if i == 1 {
			op = rpma.Write(s.remote.Slice(0, 8), m.Slice(0, 8))
		}
		s.post(op, 1, rpma.CompletionOnError)
		c := s.next(s.conn.CQ())
		const remoteAccess = 10 // IBV_WC_REM_ACCESS_ERR
		check(c.ID == 1 && c.Status == remoteAccess, "completion %d: %v", c.ID, c.Status)
		s.end(true)
	}
	fmt.Println("refused")
}
