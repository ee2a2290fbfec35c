package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-rdma/rdma/rdmanet"
)

// metric is how one number of the statistics S appears.
type metric[S any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*S) float64
}

func counter(name, help string, value func(*rdmanet.DeviceStats) uint64) metric[rdmanet.DeviceStats] {
	return metric[rdmanet.DeviceStats]{
		prometheus.NewDesc("rdmanet_"+name, help, []string{"provider", "device"}, nil),
		prometheus.CounterValue, func(s *rdmanet.DeviceStats) float64 { return float64(value(s)) },
	}
}

func gauge(name, help string, value func(*rdmanet.DeviceStats) float64) metric[rdmanet.DeviceStats] {
	return metric[rdmanet.DeviceStats]{
		prometheus.NewDesc("rdmanet_"+name, help, []string{"provider", "device"}, nil),
		prometheus.GaugeValue, value,
	}
}

func ofListener(name, help string, kind prometheus.ValueType, value func(*rdmanet.ListenerStats) uint64) metric[rdmanet.ListenerStats] {
	return metric[rdmanet.ListenerStats]{
		prometheus.NewDesc("rdmanet_listener_"+name, help, nil, nil),
		kind, func(s *rdmanet.ListenerStats) float64 { return float64(value(s)) },
	}
}

var deviceMetrics = []metric[rdmanet.DeviceStats]{
	gauge("connections", "Stream connections open now.",
		func(s *rdmanet.DeviceStats) float64 { return float64(s.Conns) }),
	gauge("read_buffer_bytes", "Memory registered now for what streams receive.",
		func(s *rdmanet.DeviceStats) float64 { return float64(s.ReadBuffer) }),
	gauge("write_buffer_bytes", "Memory registered now for what streams send.",
		func(s *rdmanet.DeviceStats) float64 { return float64(s.WriteBuffer) }),

	counter("dials_total", "Dials of streams and datagrams, one for each address that was tried, failed ones included.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Dials }),
	counter("dial_errors_total", "Dials that failed. Those for which no device was found have no labels.",
		func(s *rdmanet.DeviceStats) uint64 { return s.DialErrors }),

	counter("fallbacks_total", "Dials that TCP served (a Dialer's Fallback), because RDMA had failed or been slow on the device.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Fallbacks }),

	counter("stream_read_bytes_total", "Bytes that programs have read from streams.",
		func(s *rdmanet.DeviceStats) uint64 { return s.BytesRead }),
	counter("stream_written_bytes_total", "Bytes that programs have written to streams.",
		func(s *rdmanet.DeviceStats) uint64 { return s.BytesWritten }),
	counter("stream_read_messages_total", "RDMA messages with data that streams have received.",
		func(s *rdmanet.DeviceStats) uint64 { return s.MessagesRead }),
	counter("stream_written_messages_total", "RDMA messages with data that streams have sent.",
		func(s *rdmanet.DeviceStats) uint64 { return s.MessagesWritten }),
	counter("stream_credit_stalls_total", "Times a write to a stream waited for the peer to give space: its program reads too slowly.",
		func(s *rdmanet.DeviceStats) uint64 { return s.CreditStalls }),
	counter("stream_retransmitted_packets_total", "Packets of streams that were sent again; 0 where the device does not tell.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Retransmits }),
	counter("stream_rnr_naks_total", "Times a stream's peer had no receive posted (receiver not ready); 0 where the device does not tell.",
		func(s *rdmanet.DeviceStats) uint64 { return s.RNRs }),
	counter("stream_spin_hits_total", "Reads of streams that found data by polling, without sleeping.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Spins }),
	counter("stream_parks_total", "Times a read or write of a stream slept.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Parks }),
	counter("stream_wakeups_total", "Times a sleeping read or write of a stream was woken.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Wakeups }),

	counter("datagram_read_bytes_total", "Payload of the datagrams that programs have read.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.BytesRead }),
	counter("datagram_written_bytes_total", "Payload of the datagrams that programs have written.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.BytesWritten }),
	counter("datagrams_read_total", "Datagrams that programs have read.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.MessagesRead }),
	counter("datagrams_written_total", "Datagrams that programs have written.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.MessagesWritten }),
	counter("datagrams_dropped_total", "Datagrams that arrived and met no room; 0 where the device does not tell.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.Dropped }),
	counter("datagrams_truncated_total", "Datagrams that were read into a buffer too small for them.",
		func(s *rdmanet.DeviceStats) uint64 { return s.Datagrams.Truncated }),

	counter("bad_icrc_packets_total", "Packets dropped for a wrong invariant CRC: changed on the way (NAT, a faulty link), or not RoCE.",
		func(s *rdmanet.DeviceStats) uint64 { return s.BadICRC }),
	counter("bad_packets_total", "Packets dropped as malformed, or as what their sender may not send.",
		func(s *rdmanet.DeviceStats) uint64 { return s.BadPacket }),
	counter("bad_key_requests_total", "Requests refused for memory that is not there or not the peer's to access.",
		func(s *rdmanet.DeviceStats) uint64 { return s.BadKey }),
}

var listenerMetrics = []metric[rdmanet.ListenerStats]{
	ofListener("accepted_connections_total", "Connections that Accept has returned.", prometheus.CounterValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.Accepted }),
	ofListener("tcp_connections_total", "Of the accepted connections, those by TCP (a ListenConfig's Fallback).", prometheus.CounterValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.TCP }),
	ofListener("rejected_requests_total", "Requests to connect that Admit has refused.", prometheus.CounterValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.Rejected }),
	ofListener("dropped_requests_total", "Requests to connect beyond the backlog, whose dialers try again; not counted by RDMA devices.", prometheus.CounterValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.Dropped }),
	ofListener("failed_requests_total", "Requests to connect that came to nothing: the peer died, did not answer or spoke something else, or something ran out.", prometheus.CounterValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.Failed }),
	ofListener("waiting_connections", "Connections that wait for Accept now.", prometheus.GaugeValue,
		func(s *rdmanet.ListenerStats) uint64 { return s.Waiting }),
}
