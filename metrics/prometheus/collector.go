// Package prometheus gives what package rdmanet counts to Prometheus: a collector for all connections and
// datagrams of the program, and one for listeners. Beside the client library of the same name it is imported as
//
//	import rdmaprom "github.com/go-rdma/rdma/metrics/prometheus"
//
// Nothing is counted twice or in between: a scrape reads [rdmanet.AllStats] and [rdmanet.Listener.Stats], and costs the
// connections nothing while there is none. Labels are the provider and the device, so there are as many series
// as devices in use, however many peers there are. The project's docs/operations.md says what to watch.
package prometheus

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-rdma/rdma/rdmanet"
)

// NewCollector returns a collector of what the whole program did, by device, closed connections included. One is to be
// registered. Dials for which no device was found have both labels empty.
func NewCollector() prometheus.Collector { return deviceCollector{} }

type deviceCollector struct{}

// Describe implements [prometheus.Collector].
func (deviceCollector) Describe(ch chan<- *prometheus.Desc) {
	for i := range deviceMetrics {
		ch <- deviceMetrics[i].desc
	}
}

// Collect implements [prometheus.Collector].
func (deviceCollector) Collect(ch chan<- prometheus.Metric) {
	all := rdmanet.AllStats()
	for i := range all {
		send(ch, deviceMetrics, &all[i], label(all[i].Provider), label(all[i].Device))
	}
}

// label is a value that Prometheus takes: Linux lets any bytes be a device's name.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// NewListenerCollector returns a collector of what the listeners did, together: a program registers one with all of
// them, or tells them apart by a label of its own:
//
//	reg := prometheus.WrapRegistererWith(prometheus.Labels{"listener": "api"}, reg)
//	reg.MustRegister(rdmaprom.NewListenerCollector(l.(*rdmanet.Listener)))
//
// A listener that is closed goes on counting for what it did.
func NewListenerCollector(listeners ...*rdmanet.Listener) prometheus.Collector {
	return listenerCollector(append([]*rdmanet.Listener(nil), listeners...))
}

type listenerCollector []*rdmanet.Listener

// Describe implements [prometheus.Collector].
func (listenerCollector) Describe(ch chan<- *prometheus.Desc) {
	for i := range listenerMetrics {
		ch <- listenerMetrics[i].desc
	}
}

// Collect implements [prometheus.Collector].
func (c listenerCollector) Collect(ch chan<- prometheus.Metric) {
	var sum rdmanet.ListenerStats
	for _, l := range c {
		s := l.Stats()
		sum.Accepted += s.Accepted
		sum.Rejected += s.Rejected
		sum.Dropped += s.Dropped
		sum.Failed += s.Failed
		sum.Waiting += s.Waiting
	}
	send(ch, listenerMetrics, &sum)
}

func send[S any](ch chan<- prometheus.Metric, metrics []metric[S], s *S, labels ...string) {
	for i := range metrics {
		m := &metrics[i]
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(s), labels...)
	}
}
