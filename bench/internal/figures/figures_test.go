package figures

import "testing"

func TestFigures(t *testing.T) {
	for _, x := range []struct{ got, want any }{
		{Median([]float64{3, 1, 2}), 2.0},
		{Median([]float64{4, 1, 2, 3}), 2.5},
		{Figure(0), "0"},
		{Figure(0.01234), "0.0123"},
		{Figure(1.234), "1.23"},
		{Figure(12.34), "12.3"},
		{Figure(1234.4), "1234"},
		{Spread([]float64{3, 1, 2}), "2.00 (1.00 to 3.00)"},
	} {
		if x.got != x.want {
			t.Errorf("got %v, want %v", x.got, x.want)
		}
	}
}
