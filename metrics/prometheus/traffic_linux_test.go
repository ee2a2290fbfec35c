package prometheus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// soon bounds what should take no time.
const soon = 10 * time.Second

func listen(t *testing.T, lc *rdmanet.ListenConfig) *rdmanet.Listener {
	t.Helper()
	l, err := lc.Listen(t.Context(), "rdma", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*rdmanet.Listener)
}

// exchange sends size bytes each way over a connection and leaves its two ends open.
func exchange(t *testing.T, l net.Listener, size int) (client, server net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(c, c, int64(size))
		}
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	client, err := rdmanet.Dial("rdma", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	require.NoError(t, client.SetDeadline(time.Now().Add(soon)))
	go client.Write(make([]byte, size))
	n, err := io.CopyN(io.Discard, client, int64(size))
	require.NoError(t, err, "after %d bytes", n)
	server = <-accepted
	require.NotNil(t, server)
	t.Cleanup(func() { server.Close() })
	return client, server
}

// What goes over a stream is counted once, while its connection is open and afterwards.
func TestStreams(t *testing.T) {
	l := listen(t, new(rdmanet.ListenConfig))
	s := serve(t, NewCollector(), NewListenerCollector(l))
	first := s.scrape()
	const size = 1 << 20
	client, server := exchange(t, l, size)
	open := s.scrape()
	open.since(first)
	grown := func(now scrape, name string) int { return now.value(name) - before(first, name) }
	for _, name := range []string{"rdmanet_stream_read_bytes_total", "rdmanet_stream_written_bytes_total"} {
		assert.Equal(t, 2*size, grown(open, name), "%s: both ends are of this process", name)
	}
	assert.Equal(t, 1, grown(open, "rdmanet_dials_total"))
	assert.Equal(t, 0, grown(open, "rdmanet_dial_errors_total"))
	assert.Positive(t, grown(open, "rdmanet_stream_read_messages_total"))
	assert.Equal(t, grown(open, "rdmanet_stream_written_messages_total"), grown(open, "rdmanet_stream_read_messages_total"))
	assert.Equal(t, 2, open.value("rdmanet_connections"))
	assert.Positive(t, open.value("rdmanet_read_buffer_bytes"))
	assert.Positive(t, open.value("rdmanet_write_buffer_bytes"))
	assert.Equal(t, 1, open.value("rdmanet_listener_accepted_connections_total"))

	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.NoError(t, l.Close())
	closed := s.scrape()
	closed.since(open)
	assert.Equal(t, 2*size, grown(closed, "rdmanet_stream_read_bytes_total"))
	assert.Equal(t, 2*size, grown(closed, "rdmanet_stream_written_bytes_total"))
	assert.Equal(t, 1, closed.value("rdmanet_listener_accepted_connections_total"))
	for _, name := range []string{"rdmanet_connections", "rdmanet_read_buffer_bytes", "rdmanet_write_buffer_bytes"} {
		assert.Zero(t, closed.value(name), name)
	}
}

// No scrape sees a counter go back, however connections come and go between and during scrapes.
func TestMonotonic(t *testing.T) {
	l := listen(t, new(rdmanet.ListenConfig))
	s := serve(t, NewCollector(), NewListenerCollector(l))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := s.scrape()
		for {
			select {
			case <-stop:
				return
			default:
			}
			now := s.scrape()
			now.since(last)
			last = now
		}
	}()
	start := s.scrape()
	const rounds, size = 20, 64 << 10
	for range rounds {
		client, server := exchange(t, l, size)
		client.Close()
		server.Close()
	}
	close(stop)
	<-done
	end := s.scrape()
	end.since(start)
	assert.Equal(t, rounds*2*size, end.value("rdmanet_stream_read_bytes_total")-before(start, "rdmanet_stream_read_bytes_total"))
}

// Datagrams of sockets that are closed count too.
func TestDatagrams(t *testing.T) {
	s := serve(t, NewCollector())
	first := s.scrape()
	pc, err := rdmanet.ListenPacket("rdma-ud", "127.0.0.1:0")
	require.NoError(t, err)
	defer pc.Close()
	c, err := rdmanet.Dial("rdma-ud", pc.LocalAddr().String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, pc.SetDeadline(time.Now().Add(soon)))
	for range 5 {
		_, err = c.Write(make([]byte, 100))
		require.NoError(t, err)
		n, _, err := pc.ReadFrom(make([]byte, 60))
		require.NoError(t, err)
		require.Equal(t, 60, n)
	}
	open := s.scrape()
	require.NoError(t, c.Close())
	require.NoError(t, pc.Close())
	closed := s.scrape()
	closed.since(open)
	for _, now := range []scrape{open, closed} {
		grown := func(name string) int { return now.value(name) - before(first, name) }
		assert.Equal(t, 5, grown("rdmanet_datagrams_written_total"))
		assert.Equal(t, 500, grown("rdmanet_datagram_written_bytes_total"))
		assert.Equal(t, 5, grown("rdmanet_datagrams_read_total"))
		assert.Equal(t, 5, grown("rdmanet_datagrams_truncated_total"))
	}
}

// What fails is counted where whoever watches looks for it.
func TestFailures(t *testing.T) {
	s := serve(t, NewCollector())
	exchange(t, listen(t, new(rdmanet.ListenConfig)), 1)
	first := s.scrape()
	for _, network := range []string{"rdma", "rdma-ud"} {
		_, err := rdmanet.Dial(network, "127.0.0.1:1")
		require.Error(t, err)
	}
	failed := s.scrape()
	for _, name := range []string{"rdmanet_dials_total", "rdmanet_dial_errors_total"} {
		assert.Equal(t, 2, failed.value(name)-first.value(name), "%s of the device that they went by", name)
	}
	for i := range 100 { // the name of a device that is not there makes no series
		_, err := (&rdmanet.Dialer{Device: fmt.Sprint("nosuch", i)}).Dial("rdma", "127.0.0.1:1")
		require.ErrorIs(t, err, rdmanet.ErrNoDevice)
	}
	now := s.scrape()
	now.since(first)
	var errs, dials, series int
	now.each(func(name, device string, _ dto.MetricType, v int) {
		switch name {
		case "rdmanet_dial_errors_total":
			errs += v
			series++
		case "rdmanet_dials_total":
			dials += v
		}
	})
	first.each(func(name, device string, _ dto.MetricType, v int) {
		switch name {
		case "rdmanet_dial_errors_total":
			errs -= v
		case "rdmanet_dials_total":
			dials -= v
		}
	})
	assert.Equal(t, 102, errs)
	assert.Equal(t, 102, dials)
	assert.LessOrEqual(t, series, 2, "the device, and none")

	// Requests: refused, and beyond the backlog.
	l := listen(t, &rdmanet.ListenConfig{Admit: func(*rdmanet.Request) error { return errors.New("no") }})
	full := listen(t, &rdmanet.ListenConfig{Backlog: 2})
	ls := serve(t, NewListenerCollector(l, full))
	_, err := rdmanet.Dial("rdma", l.Addr().String())
	require.Error(t, err)
	assert.Equal(t, 1, ls.scrape().value("rdmanet_listener_rejected_requests_total"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	const dialers = 6
	for range dialers {
		go func() {
			defer func() { done <- struct{}{} }()
			if c, err := new(rdmanet.Dialer).DialContext(ctx, "rdma", full.Addr().String()); err == nil {
				<-ctx.Done()
				c.Close()
			}
		}()
	}
	require.Eventually(t, func() bool {
		s := ls.scrape()
		return s.value("rdmanet_listener_waiting_connections") == 1 && s.value("rdmanet_listener_dropped_requests_total") > 0
	}, soon, 10*time.Millisecond)
	last := ls.scrape()
	cancel()
	for range dialers {
		<-done
	}
	require.NoError(t, full.Close())
	closed := ls.scrape()
	closed.since(last)
	assert.Zero(t, closed.value("rdmanet_listener_waiting_connections"))
}

// Two listeners of one program can be told apart.
func TestListenersApart(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for _, name := range []string{"api", "feed"} {
		l := listen(t, new(rdmanet.ListenConfig))
		prometheus.WrapRegistererWith(prometheus.Labels{"listener": name}, reg).MustRegister(NewListenerCollector(l))
		if name == "feed" {
			exchange(t, l, 1)
		}
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "rdmanet_listener_accepted_connections_total"
	})
	require.GreaterOrEqual(t, i, 0)
	require.Len(t, families[i].Metric, 2)
	for _, m := range families[i].Metric {
		require.Len(t, m.Label, 1)
		want := map[string]int{"api": 0, "feed": 1}[m.Label[0].GetValue()]
		assert.Equal(t, want, int(m.Counter.GetValue()), "%s", m.Label[0].GetValue())
	}
}
