package ring

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// inlineID is an identifier of a device that takes at most so many bytes inline, and says so when the queue pair is made.
type inlineID struct {
	verbs.CMID
	most  int
	wrong *atomic.Int64 // requests with more
}

func (i inlineID) CreateQP(pd verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	a := *attr
	a.MaxInline = min(a.MaxInline, i.most)
	q, err := i.CMID.CreateQP(pd, &a)
	if err != nil {
		return nil, err
	}
	return inlineQP{q, i}, nil
}

type inlineQP struct {
	verbs.QP
	id inlineID
}

func (q inlineQP) Cap() verbs.QPCap {
	c := q.QP.Cap()
	c.MaxInline = q.id.most
	return c
}

func (q inlineQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		if len(wrs[i].Inline) > q.id.most {
			q.id.wrong.Add(1)
			return 0, syscall.EINVAL
		}
	}
	return q.QP.PostSend(wrs)
}

// TestLittleInline: streams over a device that takes little inline, or nothing, work like others.
func TestLittleInline(t *testing.T) {
	for _, most := range []int{0, 1, 16, 220} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			w := newWorld(t, simnet.Options{})
			var wrong atomic.Int64
			ch := make(chan accepted, 1)
			go func() {
				id, err := w.ln.GetRequest(context.Background())
				if err != nil {
					ch <- accepted{nil, err}
					return
				}
				Server(inlineID{id, most, &wrong}, nil, func(c *Conn, err error) { ch <- accepted{c, err} })
			}()
			c, err := Client(context.Background(), inlineID{w.resolve(), most, &wrong}, nil)
			require.NoError(t, err)
			defer c.Close()
			a := <-ch
			require.NoError(t, a.err)
			s := a.c
			defer s.Close()

			sizes := []int{1, 15, 16, 17, 64, 65, 220, 221, 5000, 70000}
			const total = 1 << 20
			var wg sync.WaitGroup
			for _, e := range []*Conn{c, s} {
				wg.Go(func() {
					for off, i := 0, 0; off < total; i++ {
						n, err := e.Write(pattern(off, min(sizes[i%len(sizes)], total-off)))
						if !assert.NoError(t, err) {
							return
						}
						off += n
					}
					assert.NoError(t, e.CloseWrite())
				})
				wg.Go(func() {
					got, err := io.ReadAll(struct{ io.Reader }{e})
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(pattern(0, total), got))
				})
			}
			wait(t, &wg)
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
			require.Zero(t, wrong.Load())
		})
	}
}
