package ring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/go-rdma/rdma/internal/rc"
	"github.com/go-rdma/rdma/internal/verbs"
)

// Config holds the options of a connection. Its zero value is a good one.
type Config struct {
	ReadBuffer  int           // limit of receive memory, bytes; 0: 2 MiB
	WriteBuffer int           // limit of send memory, bytes; 0: 2 MiB
	BusyPoll    time.Duration // how long a Read spins before it parks; 0: adaptive, negative: never

	// Messages is how devices without immediates are used (iWARP), also on one that has them. Both
	// ends must have it so.
	Messages bool

	// KeepAlive with all fields zero is on, as in package net: 15 s, 15 s, 9.
	KeepAlive   net.KeepAliveConfig
	NoKeepAlive bool
}

const (
	defaultBuffer = 2 << 20
	minBuffer     = 2 * rc.MinBlock

	// sendDepth bounds the messages on their way. ctrlSlots of control messages may be
	// among them; the rest of the reserve is for what ends a connection.
	sendDepth   = 64 + ctrlReserve
	ctrlSlots   = 4
	ctrlReserve = ctrlSlots + 2

	// inlineWanted is asked for. A provider that grants more may have to keep as much
	// for each request of its queue, but for one that grants inlineAll: it delivers what it
	// can at once.
	inlineWanted = 64
	inlineAll    = 4096

	// minRNRTimer is the code for 0.64 ms (IBTA 9.7.5.2.8). The default of rdma_cm, 655
	// ms, is a long time for a peer that ran into it.
	minRNRTimer = 12
)

func bufferLimit(n int) int {
	if n <= 0 {
		return defaultBuffer
	}
	return max(n, minBuffer)
}

// newConn makes all that a connection needs before its peer is known of.
func newConn(id verbs.CMID, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	c := &Conn{local: id.LocalAddr(), remote: id.RemoteAddr()}
	c.memRefs.Store(1)
	c.linger.Store(int64(defaultLinger))
	c.rd = rc.NewSide(c.readReady)
	c.wr = rc.NewSide(c.writeReady)
	c.keep.Init((*kept)(c), cfg.keepAliveConfig())

	var err error
	c.rc, err = rc.New(id, &rc.Config{
		Handler: (*handler)(c), SendWR: sendDepth, RecvWR: windowMax + windowSpare,
		Inline: inlineWanted, MinRNRTimer: minRNRTimer, BusyPoll: cfg.BusyPoll, Messages: cfg.Messages,
	})
	if err != nil {
		_ = id.Close() // the first error says more
		return nil, err
	}
	c.made.Made("stream")
	if err = c.getMemory(cfg); err != nil {
		c.teardown()
		return nil, err
	}
	return c, nil
}

func (c *Conn) getMemory(cfg *Config) (err error) {
	if c.rc.SendWR() < 2*ctrlReserve || c.rc.RecvWR() < 2*windowSpare {
		return fmt.Errorf("queue pair of only %d sends and %d receives: %w", c.rc.SendWR(), c.rc.RecvWR(), syscall.ENOMEM)
	}
	dev := c.rc.Device()
	if c.ctl.block, err = dev.Get(rc.MinBlock, true); err != nil {
		return err
	}
	c.ctl.mr, err = dev.PD().RegMR(c.ctl.block.Bytes()[:sglEntries*descriptorLen], verbs.LocalWrite|verbs.RemoteWrite)
	if err != nil {
		return err
	}
	windowMax := c.rc.RecvWR() - windowSpare
	if err = c.rx.init(c, bufferLimit(cfg.ReadBuffer), min(windowInitial, windowMax), windowMax); err != nil {
		return err
	}
	c.tx.init(c, bufferLimit(cfg.WriteBuffer))
	if c.inline = c.rc.Inline(); c.inline < inlineAll {
		c.inline = min(c.inline, inlineWanted)
	}
	n, err := c.rc.PostReceives(c.rx.window + windowSpare)
	if err == nil && n < c.rx.window+windowSpare {
		err = fmt.Errorf("only %d receives posted: %w", n, syscall.ENOMEM)
	}
	return err
}

// connData is what this side tells its peer.
func (c *Conn) connData(bigEndian bool) []byte {
	d := connData{
		bigEndian: bigEndian,
		credits:   uint16(c.rx.window),
		sgl:       descriptor{addr: c.ctl.mr.Addr(), key: c.ctl.mr.RKey(), length: sglEntries},
		buf:       c.rx.segs[0].descriptor(),
	}
	return d.appendTo(make([]byte, 0, connDataLen))
}

// setPeer takes what the peer tells. bigEndian is the byte order announced for this
// side's target SGL.
func (c *Conn) setPeer(d *connData, bigEndian bool) {
	c.rx.setPeer(d.sgl.length)
	t := &c.tx
	t.win.init(d.credits, d.buf)
	t.peerSGL, t.peerOrder, t.ownOrder = d.sgl, order(d.bigEndian), order(bigEndian)
	c.rc.SetMessageOrder(t.peerOrder) // librdmacm takes it for the order of this host
}

// connParam asks for what the protocol needs: no READs, endless RNR retries.
func connParam(private []byte) *verbs.ConnParam {
	return &verbs.ConnParam{PrivateData: private, FlowControl: true, RetryCount: 7, RNRRetryCount: 7}
}

// Client connects to the peer that id leads to, and owns id from then on. ctx
// bounds the attempt only.
func Client(ctx context.Context, id verbs.CMID, cfg *Config) (*Conn, error) {
	c, err := newConn(id, cfg)
	if err != nil {
		return nil, err
	}
	p := connParam(c.connData(false))
	if c.rc.Messages() {
		p.InitiatorDepth = 1 // an iWARP device may begin a connection with a READ (RFC 6581), and librdmacm lets it
	}
	rep, err := c.rc.Connect(ctx, p)
	if err != nil {
		c.teardown()
		return nil, err
	}
	d, err := parseConnData(rep.PrivateData)
	if err != nil {
		protocolErrors.Add(1)
		c.teardown()
		return nil, err
	}
	c.local = id.LocalAddr() // the port may have been chosen just now
	c.setPeer(&d, false)
	c.rc.Start()
	c.established()
	return c, nil
}

// Server answers the request that id carries, and owns id from then on. It does
// not wait for the peer: done is called once, perhaps before Server returns and
// perhaps on a goroutine of the provider, which it must not block. cancel gives
// up a connection that does not stand yet; done then gets net.ErrClosed.
func Server(id verbs.CMID, cfg *Config, done func(*Conn, error)) (cancel func()) {
	c, err := accept(id, cfg, done)
	if err != nil {
		done(nil, err)
		return func() {}
	}
	return func() { c.giveUp(net.ErrClosed) }
}

func accept(id verbs.CMID, cfg *Config, done func(*Conn, error)) (*Conn, error) {
	req := id.Request()
	if req == nil {
		_ = id.Close() // not a request at all
		return nil, fmt.Errorf("no connection request: %w", syscall.EINVAL)
	}
	d, err := parseConnData(req.PrivateData)
	if err != nil {
		protocolErrors.Add(1)
		_, _ = id.Reject(nil), id.Close() // the peer may be gone already
		return nil, err
	}
	c, err := newConn(id, cfg)
	if err != nil {
		return nil, err
	}
	// The byte order of the target SGL is the peer's, so that neither side swaps.
	c.setPeer(&d, d.bigEndian)
	c.pending = done
	p := connParam(c.connData(d.bigEndian))
	p.FlowControl = req.FlowControl
	if c.rc.Messages() {
		p.ResponderResources, p.InitiatorDepth = min(req.ResponderResources, 1), min(req.InitiatorDepth, 1)
	}
	c.rc.Start()
	if err := c.rc.Accept(p); err != nil {
		if !c.takePending() {
			return c, nil // an event was faster and has told
		}
		c.teardown()
		return nil, err
	}
	return c, nil
}

// takePending tells whether the caller is the one to end the set-up of the passive side.
func (c *Conn) takePending() bool {
	c.tx.mu.Lock()
	defer c.tx.mu.Unlock()
	was := c.pending != nil
	c.pending = nil
	return was
}

// established lets data flow.
func (c *Conn) established() {
	c.tx.mu.Lock()
	c.tx.open = true
	c.pump()
	c.tx.mu.Unlock()
	c.keep.Start()
}

// standing is told when the passive side's connection stands.
func (c *Conn) standing() {
	c.tx.mu.Lock()
	done := c.pending
	c.pending = nil
	c.tx.mu.Unlock()
	if done != nil { // else it was given up
		c.established()
		done(c, nil)
	}
}

// giveUp ends the set-up of the passive side, if it has not ended.
func (c *Conn) giveUp(err error) {
	c.tx.mu.Lock()
	done := c.pending
	c.pending = nil
	c.tx.mu.Unlock()
	if done == nil {
		return
	}
	c.closed.Store(true)
	background.add()
	go func() {
		defer background.done()
		c.teardown()
	}()
	done(nil, err)
}

// connectError is the error of a passive side that did not come to stand.
func connectError(err error) error {
	if err == nil {
		return errors.New("connection not established")
	}
	return err
}
