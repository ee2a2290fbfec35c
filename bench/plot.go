package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotFile is a picture beside the tables.
type plotFile struct {
	name, title string
	svg         []byte
}

// sideColors are told apart also by those who see no red or no green (Okabe and Ito's).
var sideColors = map[string]color.Color{
	sideTCP:       color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	sideRDMA:      color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	sideSpin:      color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	sideParked:    color.RGBA{0x00, 0x9e, 0x73, 0xff},
	sideUnix:      color.RGBA{0x00, 0x72, 0xb2, 0xff},
	sideShm:       color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	sideShmSpin:   color.RGBA{0xe3, 0xb5, 0xd0, 0xff},
	sideShmParked: color.RGBA{0x7f, 0x3f, 0x66, 0xff},
	sideUCX:       color.RGBA{0x00, 0x00, 0x00, 0xff},
	sideQUIC:      color.RGBA{0x99, 0x99, 0x99, 0xff},
}

// bars are a chart of groups of bars, one in each for a side.
type bars struct {
	title, unit string
	groups      []string
	sides       []string
	values      map[string][]float64 // by side and group; NaN: none
	lines       []float64            // across
}

func newBars(title, unit string) *bars {
	return &bars{title: title, unit: unit, values: map[string][]float64{}}
}

func (b *bars) add(side string, v float64) {
	if _, ok := b.values[side]; !ok {
		b.sides = append(b.sides, side)
	}
	for len(b.values[side]) < len(b.groups)-1 {
		b.values[side] = append(b.values[side], math.NaN())
	}
	b.values[side] = append(b.values[side], v)
}

// draw is the chart as SVG.
func (b *bars) draw(name string) (plotFile, error) {
	f := plotFile{name: name, title: b.title}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = b.title, b.unit
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.Legend.XOffs, p.Legend.ThumbnailWidth = -vg.Points(4), vg.Points(10)
	const space = 640.0 // points, for all groups together
	width := vg.Points(space / float64(len(b.groups)) / float64(len(b.sides)+1))
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid)
	for i, side := range b.sides {
		v := make(plotter.Values, len(b.groups))
		for k := range v {
			if k < len(b.values[side]) && !math.IsNaN(b.values[side][k]) {
				v[k] = b.values[side][k]
			}
		}
		chart, err := plotter.NewBarChart(v, width)
		if err != nil {
			return f, fmt.Errorf("plot %s: %w", name, err)
		}
		chart.Color, chart.LineStyle.Width = sideColors[side], 0
		chart.Offset = (vg.Length(i) - vg.Length(len(b.sides)-1)/2) * width
		p.Add(chart)
		p.Legend.Add(side, chart)
	}
	for _, y := range b.lines {
		line := plotter.NewFunction(func(float64) float64 { return y })
		line.Dashes = []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
		p.Y.Max = math.Max(p.Y.Max, y)
	}
	p.NominalX(b.groups...)
	p.X.Min, p.X.Max = -0.6, float64(len(b.groups))-0.4
	p.Y.Max *= 1.15 // room for the legend
	c := vgsvg.New(vg.Points(space+120), vg.Points(300))
	p.Draw(draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return f, fmt.Errorf("plot %s: %w", name, err)
	}
	f.svg = out.Bytes()
	return f, nil
}

// plots are all of the results'.
func (r *results) plots() (ps []plotFile, err error) {
	charts := map[string]*bars{
		"trips":      newBars("Time of a round trip and of an HTTP GET, one after the other (less is better)", "µs"),
		"trips-busy": newBars("The same on a busy machine (less is better)", "µs"),
		"streams":    newBars("Streams (more is better)", "MiB/s"),
	}
	for i := range r.rows {
		x := &r.rows[i]
		b := charts["trips"]
		switch {
		case x.c.bytes > 0:
			b = charts["streams"]
		case x.c.busy:
			b = charts["trips-busy"]
		}
		b.groups = append(b.groups, fmt.Sprintf("%s\n%s", x.c.label, processCount(x.processes)))
		for _, s := range x.sides {
			b.add(s.side, median(s.figures))
		}
	}
	order := []string{"trips", "trips-busy", "streams"}
	for i := range r.grid {
		x := &r.grid[i]
		size := sizeName(x.cell.body)
		for _, kind := range []struct{ name, title, unit string }{
			{"requests", x.cell.kind.title + " requests a second beside TCP's, bodies of " + size + " (more is better)", "times TCP"},
			{"p99", x.cell.kind.title + ": 99th percentile of latency beside TCP's, bodies of " + size + " (less is better)", "times TCP"},
		} {
			name := fmt.Sprintf("grid-%s-%d-%s", x.cell.kind.service, x.cell.body, kind.name)
			b := charts[name]
			if b == nil {
				b = newBars(kind.title, kind.unit)
				b.lines = []float64{1}
				if kind.name == "requests" {
					b.lines = append(b.lines, collapse)
				}
				charts[name] = b
				order = append(order, name)
			}
			b.groups = append(b.groups, fmt.Sprintf("%d×%d", x.cell.conns, x.cell.depth))
			for k := 1; k < len(x.sides); k++ {
				v := x.speed(k)
				if kind.name == "p99" {
					v = x.slower(k, 99)
				}
				b.add(x.sides[k].side, v)
			}
		}
	}
	for _, name := range order {
		if b := charts[name]; len(b.groups) > 0 && len(b.sides) > 0 {
			f, err := b.draw(name)
			if err != nil {
				return nil, err
			}
			ps = append(ps, f)
		}
	}
	return ps, nil
}

func processCount(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// slower is how many times as long as the first side's a percentile of latency is; NaN where there is none.
func (x *gridRow) slower(i int, percent float64) float64 {
	a, b := x.sides[i].latency.percentile(percent), x.sides[0].latency.percentile(percent)
	if a == 0 || b == 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}
