package main

import (
	"context"
	"fmt"
	"net/http"
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
	fmt.Printf("serving %s at http://%s/\n", dir, l.Addr())

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
