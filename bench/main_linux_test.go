package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-peer") { // as startPeerProcess calls this binary
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFigures(t *testing.T) {
	for _, x := range []struct{ got, want any }{
		{micros(1500 * time.Nanosecond), 1.5},
		{mibPerSecond(64 << 10)(time.Millisecond), 62.5},
		{lessIsFaster(1, 2), 2.0},
		{moreIsFaster(1, 2), 0.5},
	} {
		if x.got != x.want {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
}

// TestMeasure runs every case once in both arrangements, too briefly to mean anything.
func TestMeasure(t *testing.T) {
	o := &options{device: "softroce", rounds: 2, sample: 2 * time.Millisecond, run: regexp.MustCompile(".")}
	rows, err := measureAll(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2*len(cases) {
		t.Fatalf("%d rows of %d", len(rows), 2*len(cases))
	}
	for _, r := range rows {
		for side, figures := range r.figures {
			if len(figures) != o.rounds || slices.Min(figures) <= 0 {
				t.Errorf("%s, %d process(es), side %d: %v", r.c.name, r.processes, side, figures)
			}
		}
		if !strings.Contains(r.path, "softroce") {
			t.Errorf("%s, %d process(es): carried by %q", r.c.name, r.processes, r.path)
		}
	}
	text := report(describeMachine(), o, rows)
	if n := strings.Count(text, "\n| "); n != len(rows)+1 {
		t.Errorf("%d lines of table for %d rows:\n%s", n, len(rows), text)
	}
}
