package rdmanet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
	"github.com/go-rdma/rdma/internal/verbs/softroce/simnet"
)

// torture is processes of one host, each a server and a client, and what is known about them.
type torture struct {
	*testing.T
	r     *rand.Rand
	procs []*actorProcess
	conns map[string]*tortureConn
	next  int
	dials []time.Duration // beside stopped processes
	did   map[string]int
}

type tortureConn struct{ from, to *actorProcess }

// Bounds of what is waited for. They are generous: the machine may be busy.
const (
	dialTime  = 5 * time.Second
	deathTime = 8 * time.Second
	// stopTime is far below the 17 s for which a connection waits.
	stopTime = 4 * time.Second
)

// TestProcessesTorture starts, stops and kills processes of one host in any order. Connections between the
// others go on without a byte missing, ports and slots come back, dials succeed soon.
func TestProcessesTorture(t *testing.T) {
	t.Parallel() // it mostly waits
	rounds, runs := 60, 1
	switch {
	case long:
		rounds, runs = 400, 6
	case testing.Short() || race.Enabled:
		rounds = 30
	}
	if !inOwnNetwork(t, time.Duration(runs)*5*time.Minute) {
		return
	}
	for _, seed := range simnet.Seeds(t, runs, long) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { newTorture(t, seed).run(rounds) })
	}
}

func newTorture(t *testing.T, seed uint64) *torture {
	h := &torture{
		T: t, r: rand.New(rand.NewPCG(seed, 1)), conns: make(map[string]*tortureConn), did: make(map[string]int),
	}
	for range 4 {
		h.start("")
	}
	return h
}

func (h *torture) run(rounds int) {
	ops := []struct {
		name   string
		weight int
		do     func() bool // false: not now
	}{
		{"start", 3, func() bool { return len(h.procs) < 8 && h.start("") }},
		{"stop", 6, h.stopOne},
		{"continue", 6, h.continueOne},
		{"kill", 3, func() bool { return h.killOne(false) }},
		{"restart", 2, func() bool { return h.killOne(true) }},
		{"dial", 14, h.dialOne},
		{"close", 3, h.closeOne},
	}
	total := 0
	for _, o := range ops {
		total += o.weight
	}
	begin := time.Now()
	for range rounds {
		n := h.r.IntN(total)
		for _, o := range ops {
			if n -= o.weight; n < 0 {
				if o.do() {
					h.did[o.name]++
				}
				break
			}
		}
		time.Sleep(time.Duration(h.r.IntN(40)) * time.Millisecond)
		for _, p := range h.procs {
			if p.stopped && time.Since(p.since) > stopTime {
				p.goOn(h)
			}
		}
		h.nothingBroken()
	}
	for _, p := range h.procs {
		if p.stopped {
			p.goOn(h)
		}
	}
	h.allGoOn()
	h.slotsAre(len(h.procs))
	for _, id := range h.ids() {
		h.closeConn(id, h.conns[id])
	}
	h.nothingBroken()
	for _, p := range h.procs {
		p.in.Close()
		select {
		case <-p.ended:
		case <-time.After(20 * time.Second):
			require.FailNow(h, "a process does not end")
		}
		assert.Zero(h, p.cmd.ProcessState.ExitCode())
	}
	h.slotsAre(0)
	slices.Sort(h.dials)
	h.Logf("%v in %v; %d dials beside stopped processes took %v in the middle, %v at most", h.did,
		time.Since(begin).Round(time.Millisecond), len(h.dials), mid(h.dials), mid(h.dials[max(len(h.dials)-1, 0):]))
}

func mid(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)/2].Round(time.Millisecond)
}

func (h *torture) start(addr string) bool {
	h.Helper()
	var args []string
	if addr != "" {
		args = []string{addr}
	}
	h.procs = append(h.procs, startActor(h, args...))
	return true
}

// pick returns a process that runs, or nil.
func (h *torture) pick(want func(p *actorProcess) bool) *actorProcess {
	var ps []*actorProcess
	for _, p := range h.procs {
		if want(p) {
			ps = append(ps, p)
		}
	}
	if len(ps) == 0 {
		return nil
	}
	return ps[h.r.IntN(len(ps))]
}

func running(p *actorProcess) bool { return !p.stopped }

func (h *torture) stopped() (n int) {
	for _, p := range h.procs {
		if p.stopped {
			n++
		}
	}
	return n
}

func (h *torture) stopOne() bool {
	p := h.pick(running)
	if 2*h.stopped() >= len(h.procs) {
		return false
	}
	p.stop(h)
	return true
}

func (h *torture) continueOne() bool {
	p := h.pick(func(p *actorProcess) bool { return p.stopped })
	if p == nil {
		return false
	}
	p.goOn(h)
	return true
}

// killOne kills a process, stopped or not. Those that were connected to it hear of it, at once if they run.
func (h *torture) killOne(again bool) bool {
	if len(h.procs) < 4 {
		return false
	}
	i := h.r.IntN(len(h.procs))
	p := h.procs[i]
	p.kill()
	h.procs = slices.Delete(h.procs, i, i+1)
	if again { // its port is free at once
		h.start(p.addr)
	}
	for _, id := range h.ids() {
		c := h.conns[id]
		switch {
		case c.from == p:
		case c.to == p:
			// A stopped one could tell only later.
			was := c.from.stopped
			if was {
				c.from.goOn(h)
			}
			line := c.from.wait(h, deathTime, "broken "+id+" ")
			assert.True(h, strings.HasPrefix(line, "broken "+id+" reset "), line)
			if was {
				c.from.stop(h)
			}
		default:
			continue
		}
		delete(h.conns, id)
	}
	if !again { // nobody's port refuses
		if from := h.pick(running); from != nil {
			h.next++
			id := fmt.Sprint(h.next)
			from.do(h, "dial %s %s", id, p.addr)
			line := from.wait(h, dialTime, "dialed "+id, "failed "+id+" ")
			assert.True(h, strings.HasPrefix(line, "failed "+id+" refused "), line)
		}
	}
	return true
}

func (h *torture) dialOne() bool {
	if len(h.conns) > 40 {
		return false
	}
	from, to := h.pick(running), h.pick(running)
	h.next++
	id := fmt.Sprint(h.next)
	begin := time.Now()
	from.do(h, "dial %s %s", id, to.addr)
	line := from.wait(h, dialTime, "dialed "+id, "failed "+id+" ")
	require.Equal(h, "dialed "+id, line)
	if h.stopped() > 0 {
		h.dials = append(h.dials, time.Since(begin))
	}
	h.conns[id] = &tortureConn{from, to}
	return true
}

func (h *torture) closeOne() bool {
	for _, id := range h.ids() {
		if c := h.conns[id]; !c.from.stopped && !c.to.stopped {
			h.closeConn(id, c)
			return true
		}
	}
	return false
}

// ids returns the names of the connections, always in one order.
func (h *torture) ids() []string { return slices.Sorted(maps.Keys(h.conns)) }

func (h *torture) closeConn(id string, c *tortureConn) {
	c.from.do(h, "close %s", id)
	require.Equal(h, "closed "+id+" <nil>", c.from.wait(h, 15*time.Second, "closed "+id+" ", "broken "+id+" "))
	delete(h.conns, id)
}

// nothingBroken finds that no process has told of anything that was not waited for.
func (h *torture) nothingBroken() {
	h.Helper()
	for _, p := range h.procs {
		require.Empty(h, p.unasked())
	}
}

// allGoOn finds that data flows on each connection, also on those whose ends were stopped.
func (h *torture) allGoOn() {
	count := func(id string, c *tortureConn) (n int) {
		c.from.do(h, "count %s", id)
		line := c.from.wait(h, 10*time.Second, "count "+id+" ", "broken "+id+" ")
		_, err := fmt.Sscanf(line, "count "+id+" %d", &n)
		require.NoError(h, err, line)
		return n
	}
	for _, id := range h.ids() {
		c := h.conns[id]
		before := count(id, c)
		require.Eventually(h, func() bool { return count(id, c) > before+2 }, 20*time.Second, 20*time.Millisecond,
			"connection %s does not go on", id)
	}
}

// slotsAre finds how many slots are taken.
func (h *torture) slotsAre(want int) {
	h.Helper()
	assert.Len(h, slots(h), want)
}

// slots are those that the processes of this network have, as the kernel knows.
func slots(t testing.TB) map[int]bool {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	taken := make(map[int]bool)
	for l := range strings.Lines(string(b)) {
		if _, name, ok := strings.Cut(l, "@go-rdma/softroce/"); ok {
			if _, slot, ok := strings.Cut(name, "/slot/"); ok {
				n, err := strconv.Atoi(strings.TrimSpace(slot))
				require.NoError(t, err)
				taken[n] = true
			}
		}
	}
	return taken
}
