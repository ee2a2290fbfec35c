package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-rdma/rdma/rpma"
)

// A benchCase is an operation of some length, so many at a time.
type benchCase struct {
	op    string
	size  int
	depth int
}

const (
	maxSize  = 64 << 10
	maxDepth = 32
)

func allCases() (cs []benchCase) {
	for _, depth := range []int{1, maxDepth} {
		for _, op := range []string{"Write", "Read", "Write+Flush", "Send"} {
			for _, size := range []int{8, 4 << 10, maxSize} {
				cs = append(cs, benchCase{op, size, depth})
			}
		}
	}
	return cs
}

func (c *benchCase) name() string {
	size := fmt.Sprintf("%d B", c.size)
	if c.size >= 1<<10 {
		size = fmt.Sprintf("%d KiB", c.size>>10)
	}
	return fmt.Sprintf("%s, %s, depth %d", c.op, size, c.depth)
}

func caseNamed(name string) (benchCase, error) {
	for _, c := range allCases() {
		if c.name() == name {
			return c, nil
		}
	}
	return benchCase{}, fmt.Errorf("no case %q", name)
}

// ops are what one of the case's operations consists of; the last one tells of its end.
func (c *benchCase) ops(e *end, at int) []rpma.Op {
	if e.oneBuffer {
		at = 0
	}
	own, far := e.mr.Slice(at*maxSize, c.size), e.remote.Slice(uint64(at)*maxSize, c.size)
	switch c.op {
	case "Read":
		return []rpma.Op{rpma.Read(own, far)}
	case "Write+Flush":
		w := rpma.Write(far, own)
		w.Flags = rpma.CompletionOnError
		return []rpma.Op{w, rpma.Flush(far, rpma.Visibility)}
	case "Send":
		return []rpma.Op{rpma.Send(own)}
	}
	return []rpma.Op{rpma.Write(far, own)}
}

// figures are one sample's.
type sampleFigures struct {
	PerSecond     float64
	P50, P99, Max float64 // microseconds
}

// measure does the case's operations for about a sample's time.
func (c *benchCase) measure(ctx context.Context, e *end, sample time.Duration) (*sampleFigures, error) {
	run := c.pipeline
	if c.depth == 1 {
		run = c.oneByOne
	}
	if _, err := run(ctx, e, sample/5); err != nil { // warms up
		return nil, err
	}
	begin := time.Now()
	took, err := run(ctx, e, sample)
	if err != nil {
		return nil, err
	}
	whole := time.Since(begin)
	slices.Sort(took)
	at := func(p int) float64 { return float64(took[min(len(took)*p/100, len(took)-1)].Nanoseconds()) / 1e3 }
	return &sampleFigures{float64(len(took)) / whole.Seconds(), at(50), at(99), at(100)}, nil
}

func (c *benchCase) oneByOne(ctx context.Context, e *end, sample time.Duration) (took []time.Duration, err error) {
	ops := c.ops(e, 0)
	begin := time.Now()
	for last := begin; ; {
		if err := e.conn.Do(ctx, ops...); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		if last = now; now.Sub(begin) > sample {
			return took, nil
		}
	}
}

func (c *benchCase) pipeline(ctx context.Context, e *end, sample time.Duration) (took []time.Duration, err error) {
	var ops [maxDepth][]rpma.Op
	for i := range c.depth {
		ops[i] = c.ops(e, i)
		ops[i][len(ops[i])-1].ID = uint64(i)
	}
	var began [maxDepth]time.Time
	wc := make([]rpma.Completion, c.depth)
	q := e.conn.CQ()
	flying := 0
	post := func(i int) error {
		began[i] = time.Now()
		n, err := e.conn.Post(ops[i]...)
		if err == nil && n < len(ops[i]) {
			err = errors.New("the queue was to have room")
		}
		flying++
		return err
	}
	begin := time.Now()
	for i := range c.depth {
		if err := post(i); err != nil {
			return nil, err
		}
	}
	for flying > 0 {
		n, err := q.Poll(wc)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			if err := q.Wait(ctx); err != nil {
				return nil, err
			}
			continue
		}
		now := time.Now()
		for k := range wc[:n] {
			if err := wc[k].Err(); err != nil {
				return nil, err
			}
			i := int(wc[k].ID)
			took = append(took, now.Sub(began[i]))
			flying--
			if now.Sub(begin) < sample {
				if err := post(i); err != nil {
					return nil, err
				}
			}
		}
	}
	return took, nil
}
