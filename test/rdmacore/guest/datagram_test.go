//go:build guest

package guest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// limit is for one step of a test.
const limit = time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func closes(t testing.TB, c io.Closer) { t.Cleanup(func() { require.NoError(t, c.Close()) }) }

// udEnd is an identifier for datagrams with a queue pair and memory for messages.
type udEnd struct {
	t    testing.TB
	id   verbs.UDCMID
	pd   verbs.PD
	cq   verbs.CQ
	qp   verbs.QP
	mr   verbs.MR
	wake chan struct{}
	got  []verbs.WC
}

const (
	udRecvs = 64
	udRoom  = verbs.GRHLen + 1024
)

// newUD gives an identifier a queue pair, which receives.
func newUD(t testing.TB, id verbs.CMID) *udEnd {
	e := &udEnd{t: t, id: id.(verbs.UDCMID), wake: make(chan struct{}, 1)}
	var err error
	e.pd, err = id.Device().AllocPD()
	require.NoError(t, err)
	closes(t, e.pd)
	e.cq, err = id.Device().CreateCQ(&verbs.CQAttr{Depth: 4 * udRecvs, Notify: func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}})
	require.NoError(t, err)
	closes(t, e.cq)
	arena, err := e.pd.NewArena(1 << 18)
	require.NoError(t, err)
	closes(t, arena)
	e.mr, err = e.pd.RegMR(arena.Bytes(), verbs.LocalWrite)
	require.NoError(t, err)
	closes(t, e.mr)
	e.qp, err = id.CreateQP(e.pd, &verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: udRecvs + 1, MaxInline: 64,
	})
	require.NoError(t, err)
	closes(t, e.qp)
	for i := range udRecvs {
		e.recv(i)
	}
	return e
}

// recv posts a receive.
func (e *udEnd) recv(i int) {
	e.t.Helper()
	n, err := e.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{{
		Addr: e.mr.Addr() + uint64(i*udRoom), Length: udRoom, LKey: e.mr.LKey(),
	}}}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
}

// datagram is one that was received.
type datagram struct {
	verbs.WC
	grh  verbs.GRH
	data string
}

// next waits for a datagram and posts its receive again.
func (e *udEnd) next() datagram {
	e.t.Helper()
	for {
		wc := e.completion(verbs.WCRecv)
		b := e.mr.Bytes()[wc.ID*udRoom:][:wc.ByteLen]
		grh, err := verbs.ParseGRH(b, wc.Flags)
		require.NoError(e.t, err, "%+v % x", wc, b)
		d := datagram{wc, grh, string(b[verbs.GRHLen:])}
		e.recv(int(wc.ID))
		return d
	}
}

// completion waits for one of an operation; those of others wait for their turn.
func (e *udEnd) completion(op verbs.WCOpcode) verbs.WC {
	e.t.Helper()
	deadline := time.After(limit)
	for armed := false; ; armed = !armed {
		var wcs [16]verbs.WC
		n, err := e.cq.Poll(wcs[:])
		require.NoError(e.t, err)
		e.got = append(e.got, wcs[:n]...)
		for i, wc := range e.got {
			require.Equal(e.t, verbs.Success, wc.Status, "%+v", wc)
			if wc.Op == op {
				e.got = append(e.got[:i:i], e.got[i+1:]...)
				return wc
			}
		}
		if !armed {
			require.NoError(e.t, e.cq.Arm())
			continue
		}
		select {
		case <-e.wake:
		case <-deadline:
			require.Fail(e.t, "no completion", "of %v, but %+v", op, e.got)
		}
	}
}

// nothing checks that no datagram comes.
func (e *udEnd) nothing() {
	e.t.Helper()
	time.Sleep(200 * time.Millisecond)
	var wcs [16]verbs.WC
	n, err := e.cq.Poll(wcs[:])
	require.NoError(e.t, err)
	require.Empty(e.t, append(e.got, wcs[:n]...))
}

func (e *udEnd) ah(a verbs.AHAttr) verbs.AH {
	e.t.Helper()
	h, err := e.pd.CreateAH(&a)
	require.NoError(e.t, err)
	closes(e.t, h)
	return h
}

// send sends with the own queue pair's number as the immediate, as C's programs do.
func (e *udEnd) send(ah verbs.AH, qpn, qkey uint32, msg string) {
	e.t.Helper()
	n, err := e.qp.PostSend([]verbs.SendWR{{
		Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: e.qp.Num(), Inline: []byte(msg), AH: ah, RemoteQPN: qpn, RemoteQKey: qkey,
	}})
	require.NoError(e.t, err)
	require.Equal(e.t, 1, n)
	e.completion(verbs.WCSend)
}

// reply sends to whom a datagram came from.
func (e *udEnd) reply(d *datagram, msg string) {
	e.t.Helper()
	h, err := e.pd.CreateAH(&verbs.AHAttr{Local: e.id.LocalAddr().Addr(), Remote: d.grh.Source})
	require.NoError(e.t, err)
	e.send(h, d.SrcQPN, verbs.UDPQKey, msg)
	require.NoError(e.t, h.Close())
}

func resolveUD(t testing.TB, p verbs.Provider, attr verbs.CMIDAttr) verbs.CMID {
	t.Helper()
	if attr.PortSpace == 0 {
		attr.PortSpace = verbs.PSUDP
	}
	id, err := p.Resolve(within(t), &attr)
	require.NoError(t, err)
	closes(t, id)
	return id
}

func listenUD(t testing.TB, p verbs.Provider, port uint16) verbs.Listener {
	t.Helper()
	l, err := p.Listen(within(t), &verbs.ListenAttr{PortSpace: verbs.PSUDP, Local: at(port)})
	require.NoError(t, err)
	closes(t, l)
	return l
}

// at is the device's address with a port.
func at(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(*addr), port) }

// TestDatagrams: a service is looked up, and both sides send; what is in front of a datagram tells who did.
func TestDatagrams(t *testing.T) {
	p := provider(t)
	l := listenUD(t, p, 0)
	server := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}))
	require.Equal(t, at(0).Addr(), server.id.LocalAddr().Addr())
	require.EqualValues(t, 1024, server.qp.Cap().PathMTU)
	asked := make(chan error, 1)
	go func() {
		asked <- func() error {
			r, err := l.GetRequest(within(t))
			if err != nil {
				return err
			}
			defer r.Close()
			if got := r.Request().PrivateData; !bytes.HasPrefix(got, []byte("who?")) || len(got) > verbs.MaxPrivateSIDRREQ {
				return fmt.Errorf("private data of the request: %q", got)
			}
			return r.(verbs.UDCMID).Reply(server.qp.Num(), 0, []byte("me"))
		}()
	}()
	client := newUD(t, resolveUD(t, p, verbs.CMIDAttr{Remote: l.Addr(), TrafficClass: 0x20}))
	to, err := client.id.Lookup(within(t), []byte("who?"))
	require.NoError(t, err)
	require.NoError(t, <-asked)
	require.Equal(t, server.qp.Num(), to.QPN)
	require.EqualValues(t, verbs.UDPQKey, to.QKey)
	require.True(t, bytes.HasPrefix(to.PrivateData, []byte("me")), "%q", to.PrivateData)
	require.Equal(t, at(0).Addr(), to.AH.Local)
	require.Equal(t, at(0).Addr(), to.AH.Remote)
	require.EqualValues(t, 0x20, to.AH.TrafficClass)
	require.Equal(t, 1, to.AH.Port)

	client.send(client.ah(to.AH), to.QPN, to.QKey, "hello")
	d := server.next()
	require.Equal(t, "hello", d.data)
	require.Equal(t, client.qp.Num(), d.SrcQPN)
	require.NotZero(t, d.Flags&verbs.WCWithImm)
	require.Equal(t, client.qp.Num(), d.Imm)
	require.Equal(t, at(0).Addr(), d.grh.Source)
	require.Equal(t, at(0).Addr(), d.grh.Dest)
	require.EqualValues(t, 0x20, d.grh.TrafficClass)
	require.EqualValues(t, 64, d.grh.HopLimit)
	server.reply(&d, "hello yourself")
	require.Equal(t, "hello yourself", client.next().data)

	// From registered memory, up to the limit and not beyond.
	long := make([]byte, 1024)
	for i := range long {
		long[i] = byte(i * 7)
	}
	off := udRecvs * udRoom
	copy(client.mr.Bytes()[off:], long)
	ah := client.ah(to.AH)
	wr := []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.Signaled, AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey, SGL: []verbs.SGE{
		{Addr: client.mr.Addr() + uint64(off), Length: 1024, LKey: client.mr.LKey()},
	}}}
	n, err := client.qp.PostSend(wr)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	d = server.next()
	require.Equal(t, string(long), d.data)
	require.Zero(t, d.Flags&verbs.WCWithImm)
	wr[0].SGL[0].Length++
	_, err = client.qp.PostSend(wr)
	require.ErrorContains(t, err, "message of 1025 bytes, the limit is 1024")
	client.send(ah, to.QPN, to.QKey+1, "of another key")
	client.send(ah, to.QPN^0x800000, to.QKey, "to nobody")
	server.nothing()
}

// TestGRHFirst: a receive that begins with less than the GRH needs is refused.
func TestGRHFirst(t *testing.T) {
	e := newUD(t, resolveUD(t, provider(t), verbs.CMIDAttr{Local: at(0)}))
	_, err := e.qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: e.mr.Addr(), Length: 39, LKey: e.mr.LKey()}}}})
	require.ErrorContains(t, err, "the GRH needs 40")
}

// TestLookupFails: nobody listens, the application refuses or gives up, nobody answers.
func TestLookupFails(t *testing.T) {
	p := provider(t)
	lookup := func(port uint16) (verbs.UDCMID, error) {
		id := resolveUD(t, p, verbs.CMIDAttr{Remote: at(port)}).(verbs.UDCMID)
		_, err := id.Lookup(within(t), nil)
		return id, err
	}
	id, err := lookup(9)
	refused := new(verbs.LookupError)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, verbs.SIDRUnsupported, refused.Status)
	t.Log(err)
	_, err = id.Lookup(within(t), nil)
	require.ErrorContains(t, err, "has asked before")
	_, err = resolveUD(t, p, verbs.CMIDAttr{Local: at(0)}).(verbs.UDCMID).Lookup(within(t), nil)
	require.ErrorContains(t, err, "leads to no peer")

	l := listenUD(t, p, 0)
	request := func(f func(verbs.UDCMID) error) <-chan error {
		done := make(chan error, 1)
		go func() {
			r, err := l.GetRequest(within(t))
			if err == nil {
				err = f(r.(verbs.UDCMID))
			}
			done <- err
		}()
		return done
	}
	done := request(func(r verbs.UDCMID) error {
		if err := r.Reply(1, verbs.UDPQKey+1, nil); err == nil {
			return fmt.Errorf("a Q_Key of its own was taken")
		}
		err := r.Reject([]byte("go away"))
		_ = r.Close()
		return err
	})
	_, err = lookup(l.Addr().Port())
	require.NoError(t, <-done)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, verbs.SIDRRejected, refused.Status)
	require.True(t, bytes.HasPrefix(refused.PrivateData, []byte("go away")), "%q", refused.PrivateData)

	done = request(func(r verbs.UDCMID) error { return r.Close() })
	_, err = lookup(l.Addr().Port())
	require.NoError(t, <-done)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, verbs.SIDRRejected, refused.Status)

	// A context that ends while nobody answers, and an identifier that is closed meanwhile.
	silent := make(chan verbs.UDCMID, 2)
	for _, cancelled := range []bool{true, false} {
		done = request(func(r verbs.UDCMID) error { silent <- r; return nil })
		id := resolveUD(t, p, verbs.CMIDAttr{Remote: l.Addr()}).(verbs.UDCMID)
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			_, err := id.Lookup(ctx, nil)
			end <- err
		}()
		require.NoError(t, <-done)
		if cancelled {
			cancel()
			require.ErrorIs(t, <-end, context.Canceled)
		} else {
			require.NoError(t, id.Close())
			require.Error(t, <-end)
		}
		cancel()
		r := <-silent
		require.NoError(t, r.Reply(1, 0, nil)) // to nobody
		require.NoError(t, r.Close())
	}
}

// program is one of C's that runs, and what it has printed.
type program struct {
	t    testing.TB
	cmd  *exec.Cmd
	mu   sync.Mutex
	out  strings.Builder
	more chan struct{}
	read chan struct{}
}

func start(t testing.TB, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, more: make(chan struct{}, 1), read: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	p.cmd = exec.CommandContext(ctx, "stdbuf", append([]string{"-oL", name}, args...)...)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.cmd.Stderr = p.cmd.Stdout
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		cancel()
		<-p.read
		_ = p.cmd.Wait()
	})
	go func() {
		defer close(p.read)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.mu.Lock()
			p.out.WriteString(s.Text() + "\n")
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
		}
	}()
	return p
}

func (p *program) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// until waits for words.
func (p *program) until(words string) {
	p.t.Helper()
	for deadline := time.After(limit); !strings.Contains(p.String(), words); {
		select {
		case <-p.more:
		case <-deadline:
			require.Fail(p.t, "waiting for "+words, "%v printed: %s", p.cmd, p)
		}
	}
}

// ends waits for a good end.
func (p *program) ends() {
	p.t.Helper()
	<-p.read
	require.NoError(p.t, p.cmd.Wait(), "%v printed: %s", p.cmd, p)
}

// udPort is udaddy's.
const udPort = 7174

// TestUdaddy has udaddy on the other side, in both roles.
func TestUdaddy(t *testing.T) {
	const count, size = 5, 200
	args := []string{"-C", strconv.Itoa(count), "-S", strconv.Itoa(size)}
	msg := strings.Repeat("u", size-64) + strings.Repeat("d", 64)
	t.Run("server", func(t *testing.T) {
		p := provider(t)
		c := start(t, "udaddy", append(args, "-b", *addr)...)
		c.until("starting server")
		var e *udEnd
		var to *verbs.UDParam
		for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) { // until it listens
			e = newUD(t, resolveUD(t, p, verbs.CMIDAttr{Remote: at(udPort)}))
			var err error
			if to, err = e.id.Lookup(within(t), nil); err == nil {
				break
			}
			refused := new(verbs.LookupError)
			require.ErrorAs(t, err, &refused)
			require.Less(t, time.Since(begin), limit)
		}
		ah := e.ah(to.AH)
		off := uint64(udRecvs * udRoom)
		copy(e.mr.Bytes()[off:], msg)
		for range count {
			n, err := e.qp.PostSend([]verbs.SendWR{{
				Op: verbs.OpSendWithImm, Flags: verbs.Signaled, Imm: e.qp.Num(), AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey,
				SGL: []verbs.SGE{{Addr: e.mr.Addr() + off, Length: size, LKey: e.mr.LKey()}},
			}})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		for range count {
			d := e.next()
			require.Equal(t, to.QPN, d.SrcQPN)
			require.Equal(t, to.QPN, d.Imm)
			require.Len(t, d.data, size)
			require.Equal(t, msg[:size-verbs.GRHLen], d.data[verbs.GRHLen:], "what it had received goes back, GRH and all")
		}
		c.ends()
	})
	t.Run("client", func(t *testing.T) {
		p := provider(t)
		l := listenUD(t, p, udPort)
		c := start(t, "udaddy", append(args, "-s", *addr)...)
		r, err := l.GetRequest(within(t))
		require.NoError(t, err)
		closes(t, r)
		e := newUD(t, r)
		require.NoError(t, e.id.Reply(e.qp.Num(), verbs.UDPQKey, nil))
		var ds []datagram
		for range count {
			ds = append(ds, e.next())
		}
		for _, d := range ds {
			require.Len(t, d.data, size)
			require.Equal(t, d.SrcQPN, d.Imm)
			e.reply(&d, "fine")
		}
		c.ends()
	})
}
