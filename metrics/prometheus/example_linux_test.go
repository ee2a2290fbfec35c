package prometheus_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	rdmaprom "github.com/go-rdma/rdma/metrics/prometheus"
	"github.com/go-rdma/rdma/rdmanet"
)

// A web server on RDMA, whose metrics Prometheus reads over TCP.
func Example() {
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(rdmaprom.NewCollector(), rdmaprom.NewListenerCollector(l.(*rdmanet.Listener)))
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	page := &http.Server{Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{})}
	go page.Serve(metrics)
	defer page.Close()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello over RDMA")
	})}
	go server.Serve(l)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: new(rdmanet.Dialer).DialContext, DisableKeepAlives: true}}
	fmt.Print(get(client, "http://"+l.Addr().String()))

	for line := range strings.Lines(get(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+metrics.Addr().String())) {
		if strings.HasPrefix(line, "rdmanet_listener_accepted") {
			fmt.Print(line)
		}
	}
	// Output:
	// hello over RDMA
	// rdmanet_listener_accepted_connections_total 1
}

func get(c *http.Client, url string) string {
	resp, err := c.Get(url)
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		log.Fatal(err)
	}
	return string(body)
}
