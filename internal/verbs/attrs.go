package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Caps is for providers: what a queue pair is able to do that asks for so much. It gets def where it says nothing, and no more than most.
func (attr *QPInitAttr) Caps(provider string, def, most *QPCap) (c QPCap, err error) {
	for _, l := range [...]struct {
		name            string
		got             *int
		want, def, most int
	}{
		{"send requests", &c.MaxSendWR, attr.MaxSendWR, def.MaxSendWR, most.MaxSendWR},
		{"receive requests", &c.MaxRecvWR, attr.MaxRecvWR, def.MaxRecvWR, most.MaxRecvWR},
		{"send SGEs", &c.MaxSendSGE, attr.MaxSendSGE, def.MaxSendSGE, most.MaxSendSGE},
		{"receive SGEs", &c.MaxRecvSGE, attr.MaxRecvSGE, def.MaxRecvSGE, most.MaxRecvSGE},
		{"inline bytes", &c.MaxInline, attr.MaxInline, def.MaxInline, most.MaxInline},
	} {
		if l.want < 0 || l.want > l.most {
			return c, fmt.Errorf("%s: queue pair: %d %s, the limit is %d: %w", provider, l.want, l.name, l.most, syscall.EINVAL)
		}
		if *l.got = l.want; l.want == 0 {
			*l.got = l.def
		}
	}
	if attr.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	return c, nil
}

// Limits is for providers: how many requests and entries a shared receive queue has that asks for so many.
func (attr *SRQAttr) Limits(provider string, defWR, defSGE, mostWR, mostSGE int) (wr, sge int, err error) {
	if wr = attr.MaxWR; wr == 0 {
		wr = defWR
	}
	if sge = attr.MaxSGE; sge == 0 {
		sge = defSGE
	}
	if wr < 0 || wr > mostWR || sge < 0 || sge > mostSGE {
		return 0, 0, fmt.Errorf("%s: shared receive queue of %d requests with %d entries, the limits are %d and %d: %w",
			provider, wr, sge, mostWR, mostSGE, syscall.EINVAL)
	}
	return wr, sge, nil
}

// ErrProtection is for providers: an entry of a scatter/gather list names no region, or none that may be accessed so, or more than that.
var ErrProtection = errors.New("key, range or rights are wrong")

// Ranger is a region, to providers.
type Ranger interface {
	comparable
	// Range returns where [addr, addr+n) lies in the region, if that may be accessed so.
	Range(addr, n uint64, access Access) (off uint64, ok bool)
}

// Gather is for providers: it calls add for each part of a list that is not empty, once its region has been found and checked.
func Gather[R Ranger](sgl []SGE, access Access, find func(key uint32) R, add func(r R, off uint64, n uint32)) error {
	var none R
	for i := range sgl {
		s := &sgl[i]
		if s.Length == 0 {
			continue
		}
		r := find(s.LKey)
		if r == none {
			return ErrProtection
		}
		off, ok := r.Range(s.Addr, uint64(s.Length), access)
		if !ok {
			return ErrProtection
		}
		add(r, off, s.Length)
	}
	return nil
}
