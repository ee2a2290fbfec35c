package main

import (
	"slices"
	"testing"
)

// TestDatagrams runs each case of datagrams, too briefly to mean anything.
func TestDatagrams(t *testing.T) {
	r := &results{machine: describeMachine(), o: testOptions("datagrams")}
	if err := r.measureDatagrams(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, x := range r.datagrams {
		for _, s := range x.sides {
			if len(s.figures) != r.o.rounds || slices.Min(s.figures) <= 0 || s.arrived == 0 || s.arrived > s.sent {
				t.Errorf("%s, %s: %v; %d sent, %d arrived", x.c.name(), s.side, s.figures, s.sent, s.arrived)
			}
		}
	}
	checkReport(t, r, 1+2*len(datagramCases))
}
