package rpma_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rpma"
)

// together runs f in several goroutines, several times each, until all are done.
func together(t *testing.T, f func(g int) error) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 5 {
				if !assert.NoError(t, f(g)) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestTogether: each function by many goroutines at once, on objects of their own and on shared ones. These are what librpma's tests
// run in threads; several of the functions are not safe there.
func TestTogether(t *testing.T) {
	p, q := newPeer(t), newPeer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := &rpma.ConnConfig{SharedChannel: true, RCQSize: 5} // read by all
	const uses = 0xff &^ rpma.FlushPersistent
	own, far := alloc(t, p, 4096, uses), alloc(t, q, 4096, uses)
	b, err := far.MarshalBinary()
	require.NoError(t, err)
	r := remote(t, far)
	c, s := pair(t, p, q, pairOptions{client: cfg, server: cfg, serverData: b})
	ep, err := q.Listen(localAny)
	require.NoError(t, err)
	defer ep.Close()
	shared, err := q.NewSRQ(nil)
	require.NoError(t, err)
	defer shared.Close()
	defer rpma.SetLogger(nil)

	for name, f := range map[string]func(g int) error{
		"devices": func(int) error {
			ds, err := rpma.Devices()
			if err == nil && len(ds) == 0 {
				err = fmt.Errorf("none")
			}
			return err
		},
		"lookups": func(int) error {
			d, err := rpma.LookupLocal(local)
			if err != nil {
				return err
			}
			far, err := rpma.LookupRemote(ctx, local)
			if err == nil && (d.ODP != far.ODP || d.Name != far.Name) {
				err = fmt.Errorf("%v and %v", d, far)
			}
			return err
		},
		"peers": func(int) error {
			d, err := rpma.LookupLocal(local)
			if err != nil {
				return err
			}
			p, err := rpma.NewPeer(d)
			if err != nil {
				return err
			}
			return p.Close()
		},
		"peer configurations": func(g int) error {
			b, err := rpma.PeerConfig{DirectWriteToPMem: g%2 == 0}.MarshalBinary()
			if err != nil {
				return err
			}
			var pc rpma.PeerConfig
			if err := pc.UnmarshalBinary(b); err != nil {
				return err
			}
			if pc.DirectWriteToPMem != (g%2 == 0) {
				return fmt.Errorf("%v", pc)
			}
			c.ApplyPeerConfig(pc)
			return nil
		},
		"regions": func(g int) error {
			m, err := p.Alloc(1000*(g+1), uses)
			if err != nil {
				return err
			}
			b, err := m.MarshalBinary()
			if err != nil {
				return err
			}
			r, err := rpma.ParseRemoteMR(b)
			if err == nil && (r.Size() != uint64(m.Len()) || !r.CanFlush(rpma.Visibility) || len(m.Bytes()) != m.Len()) {
				err = fmt.Errorf("%v", r)
			}
			if e := m.Close(); err == nil {
				err = e
			}
			return err
		},
		"a region that is shared": func(int) error {
			b, err := far.MarshalBinary()
			if err != nil {
				return err
			}
			if got, err := rpma.ParseRemoteMR(b); err != nil || got != r {
				return fmt.Errorf("%v %w", got, err)
			}
			return nil
		},
		"shared receive queues": func(int) error {
			s, err := p.NewSRQ(nil)
			if err != nil {
				return err
			}
			if s.CQ() == nil {
				return fmt.Errorf("no queue")
			}
			return s.Close()
		},
		"a shared receive queue that is shared": func(int) error {
			if shared.CQ() == nil {
				return fmt.Errorf("no queue")
			}
			if err := shared.PostRecv(rpma.Local{}, 1); err != nil && err != rpma.ErrQueueFull {
				return err
			}
			return nil
		},
		"endpoints": func(int) error {
			e, err := p.Listen(localAny)
			if err != nil {
				return err
			}
			if e.Addr() == nil {
				return fmt.Errorf("no address")
			}
			return e.Close()
		},
		"requests that are given up": func(int) error {
			r, err := p.NewConnReq(ctx, ep.Addr().String(), cfg)
			if err != nil {
				return err
			}
			return r.Close()
		},
		"connections": func(int) error {
			accepted := make(chan error, 1)
			go func() {
				r, err := ep.Accept(ctx, cfg)
				if err != nil {
					accepted <- err
					return
				}
				s, err := r.Connect(ctx, b)
				if err == nil {
					<-s.Done()
					err = s.Close()
				}
				accepted <- err
			}()
			c, err := p.Dial(ctx, ep.Addr().String(), cfg)
			if err != nil {
				return err
			}
			got, err := rpma.ParseRemoteMR(c.PrivateData())
			if err == nil && got != r {
				err = fmt.Errorf("%v", got)
			}
			if e := c.Close(); err == nil {
				err = e
			}
			if e := <-accepted; err == nil {
				err = e
			}
			return err
		},
		"what a connection says": func(int) error {
			got, err := rpma.ParseRemoteMR(c.PrivateData())
			if err != nil || got != r || c.QPNum() == 0 || c.CQ() == nil || c.RecvCQ() == nil || c.Err() != nil {
				return fmt.Errorf("%v %w", got, err)
			}
			return nil
		},
		"reads and writes": func(g int) error {
			at := 64 * g
			own.Bytes()[at] = byte(g + 1)
			if err := c.Do(ctx, rpma.Write(r.Slice(uint64(at), 8), own.Slice(at, 8)), rpma.Flush(r.Slice(uint64(at), 8), rpma.Visibility),
				rpma.AtomicWrite(r.Slice(uint64(at)+8, 8), [8]byte{byte(g)}), rpma.Read(own.Slice(at+32, 16), r.Slice(uint64(at), 16))); err != nil {
				return err
			}
			if own.Bytes()[at+32] != byte(g+1) || own.Bytes()[at+40] != byte(g) {
				return fmt.Errorf("%d: %v", g, own.Bytes()[at+32:at+48])
			}
			return nil
		},
		"messages": func(g int) error {
			if err := s.PostRecv(far.Slice(2048+8*g, 8), uint64(g)); err != nil {
				return err
			}
			if err := c.Do(ctx, rpma.SendImm(own.Slice(64*g, 8), uint32(g))); err != nil {
				return err
			}
			for {
				q, recv, err := s.Wait(ctx)
				if err != nil {
					return err
				}
				var wc [1]rpma.Completion
				n, err := q.Poll(wc[:])
				if err != nil || n == 1 {
					if n == 1 && (!recv || !wc[0].HasImm || wc[0].Bytes != 8) {
						err = fmt.Errorf("%v", wc)
					}
					return err
				} // another goroutine was faster
			}
		},
		"loggers": func(int) error {
			rpma.SetLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
			rpma.SetLogger(nil)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) { together(t, f) })
	}
}
