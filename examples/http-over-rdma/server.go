package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// serve serves the files below dir until ctx ends.
func serve(ctx context.Context, addr, dir string) error {
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}

	l, err := rdmanet.Listen("rdma", addr) // net.Listen("tcp", addr) on TCP
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           http.FileServer(http.Dir(dir)),
		ReadHeaderTimeout: 10 * time.Second,
	}
	for i, addr := range usable(l.Addr().String()) {
		if i == 0 {
			fmt.Printf("serving %s at http://%s/\n", dir, addr)
		} else {
			fmt.Printf("  or http://%s/\n", addr)
		}
	}

	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	return srv.Shutdown(ctx)
}

// usable returns the addresses that others can dial of a listener's: it may listen on all that this host has.
func usable(listening string) []string {
	host, port, err := net.SplitHostPort(listening)
	if err != nil {
		return []string{listening}
	}
	wildcard, err := netip.ParseAddr(host)
	if err != nil || !wildcard.IsUnspecified() {
		return []string{listening}
	}
	var addrs []string
	for _, ip := range hostAddrs() {
		if ip.Is4() || wildcard.Is6() { // "[::]" is both
			addrs = append(addrs, net.JoinHostPort(ip.String(), port))
		}
	}
	return addrs
}

// hostAddrs returns the addresses of this host's RDMA devices, or loopback's if there is no other.
func hostAddrs() []netip.Addr {
	var addrs []netip.Addr
	seen := map[netip.Addr]bool{}
	devices, _ := rdmanet.Devices() // none is found then
	for _, d := range devices {
		for _, p := range d.Ports {
			for _, ip := range p.GIDs {
				if ip = ip.Unmap(); ip.IsGlobalUnicast() && !seen[ip] {
					seen[ip] = true
					addrs = append(addrs, ip)
				}
			}
		}
	}
	if len(addrs) == 0 {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	return addrs
}
