package main

import (
	"encoding/json"
	"io"
	"math"
	"net/netip"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// results are what -json prints.
type results struct {
	Role    string    `json:"role"` // receiver or sender
	Status  int       `json:"status"`
	Error   string    `json:"error,omitempty"`
	Members []*result `json:"members"`
}

// result is what came of one connection.
type result struct {
	Group    string          `json:"group"`
	GID      string          `json:"gid"`
	LID      uint16          `json:"lid"`
	QPN      uint32          `json:"qpn,omitempty"` // with -b
	Messages int             `json:"messages"`
	Bytes    int             `json:"bytes"`
	Seconds  float64         `json:"seconds"` // from the first message to the last
	Dropped  uint64          `json:"dropped"` // for want of room
	TooLong  int             `json:"tooLong"` // longer than message_size, and not counted as messages
	Sources  []*sourceResult `json:"sources,omitempty"`
}

// sourceResult is what came from one sender.
type sourceResult struct {
	From     string `json:"from"`
	Messages int    `json:"messages"`
	Lost     *int   `json:"lost,omitempty"` // unknown of messages without numbers; negative: some came more than once
}

func (r *results) add(group *rdmanet.Addr, qpn uint32) *result {
	m := &result{
		Group: group.IP.String(), GID: netip.AddrFrom16(group.UD.GID).String(), LID: group.UD.LID, QPN: qpn,
	}
	r.Members = append(r.Members, m)
	return m
}

func (m *result) done(messages, bytes int, took time.Duration) {
	m.Messages, m.Bytes, m.Seconds = messages, bytes, math.Round(took.Seconds()*1e6)/1e6
}

func (m *result) received(r *receiver, dropped uint64) {
	m.done(r.messages, r.bytes, r.last.Sub(r.first))
	m.Dropped, m.TooLong = dropped, r.tooLong
	for _, s := range r.order {
		from := &sourceResult{From: s.from.String(), Messages: s.messages}
		if lost, known := s.lost(); known {
			from.Lost = &lost
		}
		m.Sources = append(m.Sources, from)
	}
}

// write prints the results of a run that ended with err.
func (r *results) write(w io.Writer, o *options, err error) error {
	r.Role = "receiver"
	if o.send {
		r.Role = "sender"
	}
	if err != nil {
		r.Error = err.Error()
	}
	if r.Members == nil {
		r.Members = []*result{}
	}
	return json.NewEncoder(w).Encode(r)
}
