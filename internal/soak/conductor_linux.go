package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// conductor decides what happens, and judges what comes of it.
type conductor struct {
	*options
	r      *rand.Rand
	words  chan word
	procs  []*process
	talks  map[uint64]*held
	next   uint64
	gone   string // the address that is away
	goneAt time.Time
	clock  *clock

	did, came map[string]int
	rest      map[*process]string // what those that were asked for their state have said
	faults    []error
}

// held is a talk that goes on.
type held struct {
	talk
	from, to         *process
	began            time.Time
	excuse           string // what befell it, if it may fail
	dialed, accepted bool   // the end has told
}

// phaseTime is between two rests.
const phaseTime = 8 * time.Second

// Of the faults that are taken back.
const (
	stopTime  = 3 * time.Second
	awayTime  = 1500 * time.Millisecond
	limitTime = time.Second
	busyTalks = 20 // for each device
)

func soak(o *options) error {
	c := &conductor{
		options: o, r: rand.New(rand.NewPCG(o.seed, 1)), words: make(chan word, 1024), talks: make(map[uint64]*held),
		did: make(map[string]int), came: make(map[string]int),
	}
	fmt.Printf("soak: seed %d, %v on %v\n", o.seed, o.time, strings.Join(o.devices, ", "))
	defer c.killAll()
	if err := c.start(); err != nil {
		return err
	}
	if o.clock {
		c.clock = newClock()
		defer c.clock.restore()
	}
	phases := 0
	for end := time.Now().Add(o.time); time.Now().Before(end) && len(c.faults) == 0; phases++ {
		c.phase(time.Now().Add(min(phaseTime, time.Until(end))))
		c.settle()
	}
	if len(c.faults) == 0 {
		for _, p := range c.procs {
			if err := p.quit(); err != nil {
				c.fault("%w", err)
			}
		}
	}
	fmt.Printf("soak: %d phases; did %v; talks ended %v\n", phases, c.did, c.came)
	return errors.Join(c.faults...)
}

func (c *conductor) fault(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	c.tell("%v", err)
	c.faults = append(c.faults, err)
}

func (c *conductor) tell(format string, args ...any) {
	if c.verbose {
		fmt.Printf(time.Now().Format("05.000 ")+format+"\n", args...)
	}
}

func ip(args string) error {
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s (package iproute2): %w: %s", args, err, out)
	}
	return nil
}

func (c *conductor) start() error {
	for _, device := range c.devices {
		for range c.peers {
			addr := c.addr
			if addr == "" {
				addr = fmt.Sprintf("10.99.0.%d", len(c.procs)+1)
				if err := ip("addr add " + addr + "/32 dev lo"); err != nil {
					return err
				}
			}
			p, err := startProcess(device, addr, net.JoinHostPort(addr, "0"), c.words)
			if err != nil {
				return err
			}
			c.procs = append(c.procs, p)
		}
	}
	return nil
}

func (c *conductor) killAll() {
	for _, p := range c.procs {
		select {
		case <-p.ended:
		default:
			p.kill()
		}
	}
}

// phase lets things happen until end.
func (c *conductor) phase(end time.Time) {
	ops := []struct {
		name   string
		weight int
		do     func() bool // false: not now
	}{
		{"dial", 200, c.dial},
		{"stop", 6, c.stop},
		{"kill", 2, c.kill},
		{"address", 2, c.away},
		{"files", 2, func() bool { return c.limit("files", c.r.IntN(6)) }},
		{"memlock", 1, func() bool { return c.limit("memlock", 64<<10) }},
		{"clock", 1, func() bool { return c.clock != nil && c.clock.jump(c.r) }},
	}
	total := 0
	for _, o := range ops {
		total += o.weight
	}
	for time.Now().Before(end) && len(c.faults) == 0 {
		n := c.r.IntN(total)
		for _, o := range ops {
			if n -= o.weight; n < 0 {
				if o.do() {
					c.did[o.name]++
				}
				break
			}
		}
		c.hear(time.Duration(1+c.r.IntN(8)) * time.Millisecond)
		c.takeBack(false)
	}
}

// hear listens to the processes for a while.
func (c *conductor) hear(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case w := <-c.words:
			c.take(w)
		case <-timer.C:
			return
		}
	}
}

func (c *conductor) take(w word) {
	verb, rest, _ := strings.Cut(w.text, " ")
	switch verb {
	case "":
		if !w.from.killed {
			c.fault("%v died", w.from)
		}
	case "end":
		c.ended(w.from, rest)
	case "state":
		c.rest[w.from] = rest
	case "limited":
	default:
		c.fault("%v says %s", w.from, w.text)
	}
}

// ended judges the result of one end of a talk.
func (c *conductor) ended(p *process, text string) {
	id, rest, _ := strings.Cut(text, " ")
	role, result, _ := strings.Cut(rest, " ")
	kind, _, _ := strings.Cut(result, " ")
	c.came[kind]++
	t := c.talks[number(id)]
	wrong := kind == "wrong" || kind == "short" && !(strings.Contains(p.device, "rdmacore") && t != nil && strings.Contains(t.excuse, "kill "))
	// One whose end was not waited for may be forgotten.
	if wrong || t == nil && role == "dialed" {
		c.fault("%v, talk %s (%+v): %s: %s", p, id, t, role, strings.ReplaceAll(result, " | ", "\n"))
		return
	}
	if t == nil {
		return // accepted, and then nothing came, perhaps: the one who dialed has told, or was killed
	}
	if kind != "ok" && t.excuse == "" {
		c.fault("%v, talk %+v with %v after %v: %s: %s", p, t.talk, t.to, time.Since(t.began), role, strings.ReplaceAll(result, " | ", "\n"))
	}
	if role == "dialed" {
		t.dialed = true
		// That end need not exist, and a reset may overtake the header.
		t.accepted = t.accepted || kind != "ok" || t.end == abort
	} else {
		t.accepted = true
	}
	c.forget(t)
}

func (c *conductor) forget(t *held) {
	if (t.dialed || t.from.killed) && (t.accepted || t.to.killed) {
		c.tell("talk %d is over", t.id)
		// One that may fail is known a while longer: its other end has not told yet, perhaps.
		if t.excuse == "" {
			delete(c.talks, t.id)
		}
	}
}

// excuse lets those talks of a process fail that go on.
func (c *conductor) excuse(p *process, why string) {
	for _, t := range c.talks {
		if t.from == p || t.to == p {
			t.excuse += why + " "
		}
	}
}

// pick returns a process that wants what comes, or nil.
func (c *conductor) pick(want func(p *process) bool) *process {
	ps := slices.DeleteFunc(slices.Clone(c.procs), func(p *process) bool { return !want(p) })
	if len(ps) == 0 {
		return nil
	}
	return ps[c.r.IntN(len(ps))]
}

func (c *conductor) busy() (n int) {
	for _, t := range c.talks {
		if t.excuse == "" {
			n++
		}
	}
	return n
}

func (c *conductor) dial() bool {
	from := c.pick(func(p *process) bool { return !p.stopped })
	if from == nil || c.busy() > busyTalks*len(c.devices) {
		return false
	}
	to := c.pick(func(p *process) bool { return p.device == from.device })
	c.next++
	t := &held{talk: newTalk(c.next, c.r.Uint64()), from: from, to: to, began: time.Now()}
	local := "-"
	if c.r.IntN(2) == 0 {
		local = from.ip
	}
	for _, p := range []*process{from, to} {
		if p.limited != "" {
			t.excuse += "limit "
		}
		if p.ip == c.gone {
			t.excuse += "address "
		}
	}
	c.talks[t.id] = t
	from.do("dial %d %d %s %s", t.id, t.seed, local, to.addr)
	return true
}

func (c *conductor) stop() bool {
	stopped := 0
	for _, p := range c.procs {
		if p.stopped {
			stopped++
		}
	}
	p := c.pick(func(p *process) bool { return !p.stopped && p.limited == "" })
	if p == nil || 2*stopped >= c.peers {
		return false
	}
	c.tell("stop %v", p)
	p.stopped, p.since = true, time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGSTOP) // it is there
	return true
}

// kill kills a process, stopped or not, and starts another one at its port. The first one of each device stays: what grows shows there.
func (c *conductor) kill() bool {
	p := c.pick(func(p *process) bool {
		return p.limited == "" && p.ip != c.gone && slices.Index(c.procs, p)%c.peers != 0
	})
	if p == nil {
		return false
	}
	c.tell("kill %v", p)
	c.excuse(p, "kill")
	p.kill()
	again, err := startProcess(p.device, p.ip, p.addr, c.words)
	if err != nil {
		c.fault("in place of %v: %w", p, err)
		return false
	}
	c.procs[slices.Index(c.procs, p)] = again
	for _, t := range c.talks {
		c.forget(t)
	}
	return true
}

// away takes an address away.
func (c *conductor) away() bool {
	if c.gone != "" || c.addr != "" {
		return false
	}
	p := c.pick(func(p *process) bool { return p.limited == "" })
	if p == nil {
		return false
	}
	c.tell("without %s", p.ip)
	if err := ip("addr del " + p.ip + "/32 dev lo"); err != nil {
		c.fault("%w", err)
		return false
	}
	c.excuse(p, "address")
	c.gone, c.goneAt = p.ip, time.Now()
	return true
}

// limit lowers a limit of a process to n more than is in use.
func (c *conductor) limit(what string, n int) bool {
	p := c.pick(func(p *process) bool { return !p.stopped && p.limited == "" && p.ip != c.gone })
	if p == nil || what == "memlock" && p.device != "rdmacore" {
		return false
	}
	c.tell("limit of %s at %v", what, p)
	c.excuse(p, "limit")
	p.limited, p.since = what, time.Now()
	p.do("limit %s %d", what, n)
	return true
}

// takeBack ends the faults that have lasted long enough, or all of them.
func (c *conductor) takeBack(all bool) {
	for _, p := range c.procs {
		if p.stopped && (all || time.Since(p.since) > time.Duration(c.r.Int64N(int64(stopTime)))) {
			c.tell("continue %v", p)
			p.stopped = false
			_ = p.cmd.Process.Signal(syscall.SIGCONT) // it is there
		}
		if p.limited != "" && (all || time.Since(p.since) > limitTime) {
			c.excuse(p, "limit") // those that were dialed meanwhile
			p.do("limit %s -", p.limited)
			p.limited = ""
		}
	}
	if c.gone != "" && (all || time.Since(c.goneAt) > awayTime) {
		c.tell("again %s", c.gone)
		if err := ip("addr add " + c.gone + "/32 dev lo"); err != nil {
			c.fault("%w", err)
		}
		c.gone = ""
	}
}

// settle ends all faults and waits until all talks have ended, and processes are at rest.
func (c *conductor) settle() {
	c.takeBack(true)
	open := func(t *held) string {
		switch {
		case !t.dialed && !t.from.killed:
			return "the end that dialed"
		case !t.accepted && !t.to.killed && t.excuse == "": // else that end may never have been
			return "the end that accepted"
		}
		return ""
	}
	over := func() bool {
		for _, t := range c.talks {
			if open(t) != "" {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(talkTime); !over(); c.hear(20 * time.Millisecond) {
		if len(c.faults) > 0 {
			return
		}
		if time.Now().After(end) {
			for _, id := range slices.Sorted(maps.Keys(c.talks)) {
				t := c.talks[id]
				if open(t) == "" {
					continue
				}
				c.fault("talk %+v from %v to %v goes on for %v: %s; %s", t.talk, t.from, t.to, time.Since(t.began), open(t), t.excuse)
				for _, p := range []*process{t.from, t.to} {
					_ = p.cmd.Process.Signal(syscall.SIGQUIT) // its stacks tell where it hangs
				}
			}
			c.hear(2 * time.Second)
			return
		}
	}
	c.rest = make(map[*process]string)
	for _, p := range c.procs {
		p.do("check")
	}
	for end := time.Now().Add(talkTime); len(c.rest) < len(c.procs); c.hear(20 * time.Millisecond) {
		if time.Now().After(end) || len(c.faults) > 0 {
			c.fault("only %d of %d processes tell their state", len(c.rest), len(c.procs))
			return
		}
	}
	for p, text := range c.rest {
		c.tell("%v: %s", p, text)
		if err := p.judge(text); err != nil {
			c.fault("%w", err)
		}
	}
	clear(c.talks)
}
