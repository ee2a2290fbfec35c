package prometheus

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// numbers calls f with each number of a structure, those of structures in it included.
func numbers(v reflect.Value, prefix string, f func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		name := prefix + v.Type().Field(i).Name
		switch field := v.Field(i); field.Kind() {
		case reflect.Struct:
			numbers(field, name+".", f)
		case reflect.String:
		default:
			f(name, field)
		}
	}
}

// covers fails if a number of S is in no metric, or in several, or a metric reads none.
func covers[S any](t *testing.T, metrics []metric[S]) {
	t.Helper()
	var s S
	used := make([]int, len(metrics))
	numbers(reflect.ValueOf(&s).Elem(), "", func(name string, v reflect.Value) {
		one := reflect.ValueOf(1).Convert(v.Type())
		v.Set(one)
		n := 0
		for i := range metrics {
			if metrics[i].value(&s) == 1 {
				n++
				used[i]++
			}
		}
		v.SetZero()
		assert.Equal(t, 1, n, "%T.%s must be one metric: see metrics.go", s, name)
	})
	for i, n := range used {
		assert.Equal(t, 1, n, "%v", metrics[i].desc)
	}
}

func TestEveryNumberIsAMetric(t *testing.T) {
	covers(t, deviceMetrics)
	covers(t, listenerMetrics)
}

// Prometheus' conventions for names, units and help, as its own linter has them.
func TestLint(t *testing.T) {
	_, err := rdmanet.Dial("rdma", "127.0.0.1:1") // so that there is a series
	require.Error(t, err)
	for _, c := range []prometheus.Collector{NewCollector(), NewListenerCollector()} {
		require.Positive(t, testutil.CollectAndCount(c))
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		assert.Empty(t, problems)
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(c))
		_, err = reg.Gather()
		require.NoError(t, err, "what is collected is what was described")
	}
}

// Each metric has a help text of its own, a sentence.
func TestHelp(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range descs() {
		help := regexp.MustCompile(`help: "(.*?)",`).FindStringSubmatch(d)[1]
		assert.True(t, strings.HasSuffix(help, "."), d)
		assert.False(t, seen[help], d)
		seen[help] = true
	}
}

func descs() (all []string) {
	for i := range deviceMetrics {
		all = append(all, deviceMetrics[i].desc.String())
	}
	for i := range listenerMetrics {
		all = append(all, listenerMetrics[i].desc.String())
	}
	return all
}

// A name that is no UTF-8 is no reason to lose all metrics.
func TestLabel(t *testing.T) {
	assert.Equal(t, "mlx5_0", label("mlx5_0"))
	m, err := prometheus.NewConstMetric(deviceMetrics[0].desc, prometheus.GaugeValue, 1, "rdmacore", label("a\xffb"))
	require.NoError(t, err)
	assert.NotNil(t, m)
}
