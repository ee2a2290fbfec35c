package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-rdma/rdma/internal/verbs"
)

// each runs f for every number below n at once and joins the errors.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("connection %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// connect makes all connections, in whichever role.
func connect(ctx context.Context, p verbs.Provider, o *options) ([]*node, error) {
	nodes := make([]*node, o.connections)
	if o.server.IsValid() {
		return nodes, each(o.connections, func(i int) (err error) {
			nodes[i], err = dial(ctx, p, o)
			return err
		})
	}
	l, err := listen(ctx, p, o)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return nodes, each(o.connections, func(i int) (err error) {
		nodes[i], err = accept(ctx, l, o)
		return err
	})
}

// cmatose is ucmatose: the server sends first and disconnects last.
func cmatose(ctx context.Context, p verbs.Provider, o *options) error {
	nodes, err := connect(ctx, p, o)
	if err != nil {
		return err
	}
	client := o.server.IsValid()
	err = each(len(nodes), func(i int) error {
		n := nodes[i]
		if client {
			if err := n.receive(ctx, o.messages); err != nil {
				return err
			}
			if err := n.send(ctx, o.messages); err != nil {
				return err
			}
			return n.wait(ctx, verbs.EventDisconnected)
		}
		if err := n.send(ctx, o.messages); err != nil {
			return err
		}
		if err := n.receive(ctx, o.messages); err != nil {
			return err
		}
		if err := n.id.Disconnect(); err != nil {
			return err
		}
		return n.wait(ctx, verbs.EventDisconnected)
	})
	for _, n := range nodes {
		err = errors.Join(err, n.close())
	}
	if err == nil {
		fmt.Println("all messages have come, both ways")
	}
	return err
}

// storm is cmtime: the client disconnects.
func storm(ctx context.Context, p verbs.Provider, o *options) error {
	o.messages = 0
	nodes, err := connect(ctx, p, o)
	if err != nil {
		return err
	}
	fmt.Println(len(nodes), "connections stand")
	err = each(len(nodes), func(i int) error {
		n := nodes[i]
		if o.server.IsValid() {
			if err := n.id.Disconnect(); err != nil {
				return err
			}
		}
		return errors.Join(n.wait(ctx, verbs.EventDisconnected), n.close())
	})
	if err == nil {
		fmt.Println("all connections have ended")
	}
	return err
}
