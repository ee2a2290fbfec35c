package main

import (
	"encoding/binary"
	"errors"
)

// A datagram of the feed. All of them begin alike:
//
//	0  4  "MDF1"
//	4  4  kind
//	8  8  number of a quote, from 1
//
// A quote goes on with 8 bytes of symbol, price and size. A request goes on with how many quotes are asked for, from that
// number on.
type kind uint32

const (
	quoteKind  kind = iota + 1
	idleKind        // the number is that of the last quote sent: so that its loss is noticed
	endKind         // the same, and there will be no more
	askKind         // from a subscriber
	oldestKind      // the answer to a request for quotes that the publisher has no more: the oldest it has
)

type quote struct {
	symbol      [8]byte
	price, size uint64
}

type datagram struct {
	kind   kind
	number uint64
	quote  quote  // of quoteKind
	count  uint64 // of askKind
}

const (
	magic      = 0x4d444631
	headLength = 16
	maxLength  = headLength + 24

	// No feed gets so far, so that numbers can be counted on from, and added to.
	maxNumber = 1 << 63
)

func (d *datagram) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint32(b, uint32(d.kind))
	b = binary.BigEndian.AppendUint64(b, d.number)
	switch d.kind {
	case quoteKind:
		b = append(b, d.quote.symbol[:]...)
		b = binary.BigEndian.AppendUint64(b, d.quote.price)
		b = binary.BigEndian.AppendUint64(b, d.quote.size)
	case askKind:
		b = binary.BigEndian.AppendUint64(b, d.count)
	}
	return b
}

var errForeign = errors.New("no datagram of the feed")

// parse reads a datagram, which anybody may have sent.
func parse(b []byte) (d datagram, err error) {
	if len(b) < headLength || binary.BigEndian.Uint32(b) != magic {
		return d, errForeign
	}
	d.kind, d.number = kind(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:])
	b = b[headLength:]
	if d.number > maxNumber {
		return d, errForeign
	}
	switch {
	case d.kind == quoteKind && len(b) == 24:
		copy(d.quote.symbol[:], b)
		d.quote.price, d.quote.size = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
	case d.kind == askKind && len(b) == 8:
		if d.count = binary.BigEndian.Uint64(b); d.count >= maxNumber {
			return d, errForeign
		}
	case (d.kind == idleKind || d.kind == endKind || d.kind == oldestKind) && len(b) == 0:
	default:
		return d, errForeign
	}
	return d, nil
}
