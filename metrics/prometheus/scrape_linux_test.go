package prometheus

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scraper is a program's metrics page and who reads it.
type scraper struct {
	t   *testing.T
	url string
}

// scrape is one reading of the page.
type scrape struct {
	t        *testing.T
	families map[string]*dto.MetricFamily
}

func serve(t *testing.T, cs ...prometheus.Collector) *scraper {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(cs...)
	s := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return &scraper{t, s.URL}
}

func (s *scraper) scrape() scrape {
	s.t.Helper()
	resp, err := http.Get(s.url)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, resp.StatusCode, "%s", body)
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(body))
	require.NoError(s.t, err, "%s", body)
	return scrape{s.t, families}
}

// each calls f with every series. The device is empty where there is none.
func (s scrape) each(f func(name, device string, kind dto.MetricType, value int)) {
	for name, family := range s.families {
		for _, m := range family.Metric {
			device := ""
			for _, l := range m.Label {
				require.Contains(s.t, []string{"provider", "device"}, l.GetName(), "%s: no label may grow with the peers", name)
				if l.GetName() == "device" {
					device = l.GetValue()
				}
			}
			f(name, device, family.GetType(), int(m.GetCounter().GetValue()+m.GetGauge().GetValue())) // all are integers
		}
	}
}

// value is that of the series of the built-in device, or of one without labels.
func (s scrape) value(name string) int {
	s.t.Helper()
	require.Contains(s.t, s.families, name)
	sum, seen := 0, false
	s.each(func(n, device string, _ dto.MetricType, v int) {
		if n == name && (device == "softroce0" || len(s.families[n].Metric) == 1) {
			sum, seen = sum+v, true
		}
	})
	require.True(s.t, seen, "%s has no series of the device", name)
	return sum
}

// since fails if a counter or a series is gone or smaller than it was.
func (s scrape) since(before scrape) {
	s.t.Helper()
	type series struct{ name, device string }
	now := map[series]int{}
	s.each(func(name, device string, _ dto.MetricType, v int) { now[series{name, device}] = v })
	before.each(func(name, device string, kind dto.MetricType, v int) {
		n, ok := now[series{name, device}]
		assert.True(s.t, ok, "%s of %q is gone", name, device)
		if kind == dto.MetricType_COUNTER {
			assert.GreaterOrEqual(s.t, n, v, "%s of %q went back", name, device)
		}
	})
}

// before is a value of a scrape at whose time the device may not have been used.
func before(s scrape, name string) (sum int) {
	s.each(func(n, device string, _ dto.MetricType, v int) {
		if n == name && device == "softroce0" {
			sum += v
		}
	})
	return sum
}
