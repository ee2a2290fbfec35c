// kv stores values in a Redis or memcached server over package rdmanet and compares what
// comes back.
//
//	kv redis|memcached [-n N] [-conc N] [-size N] server:port
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-rdma/rdma/rdmanet"
	"github.com/go-rdma/rdma/test/interop/internal/pattern"
	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

// store is what both kinds of server can do.
type store interface {
	set(ctx context.Context, key string, value []byte) error
	get(ctx context.Context, key string) ([]byte, error)
	count(ctx context.Context, key string) (int64, error) // adds one
	batch(ctx context.Context, keys []string) ([][]byte, error)
	close() error
}

func main() { peer.Main("kv", run) }

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: kv redis|memcached [flags] server:port")
	}
	fs := flag.NewFlagSet("kv", flag.ContinueOnError)
	n := fs.Int("n", 20, "keys of each worker")
	conc := fs.Int("conc", 2, "workers, each with a connection")
	size := fs.Int("size", 100_000, "largest value in bytes")
	limit := fs.Duration("limit", 2*time.Minute, "time for all of it")
	wait := fs.Duration("wait", 10*time.Second, "how long to try while nobody listens")
	if err := fs.Parse(args[1:]); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return errors.New("usage: kv redis|memcached [flags] server:port")
	}
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()

	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		return peer.Dial(ctx, new(rdmanet.Dialer), addr, *wait)
	}
	open := map[string]func() (store, error){
		"redis":     func() (store, error) { return openRedis(fs.Arg(0), dial), nil },
		"memcached": func() (store, error) { return openMemcached(ctx, fs.Arg(0), dial) },
	}[args[0]]
	if open == nil {
		return fmt.Errorf("%q: redis or memcached", args[0])
	}

	errs := make(chan error, *conc)
	for w := range *conc {
		go func() { errs <- work(ctx, open, w, *n, *size) }()
	}
	var all error
	for range *conc {
		all = errors.Join(all, <-errs)
	}
	for _, s := range rdmanet.AllStats() {
		b, _ := json.Marshal(s) // numbers and names
		fmt.Printf("stats %s\n", b)
	}
	return all
}

func work(ctx context.Context, open func() (store, error), worker, n, size int) (err error) {
	s, err := open()
	if err != nil {
		return err
	}
	defer func() {
		if cerr := s.close(); err == nil {
			err = cerr
		}
	}()
	r := rand.New(rand.NewPCG(uint64(worker), 7)) //nolint:gosec // a seed
	start, total := time.Now(), 0
	keys, values := make([]string, n), make([][]byte, n)
	for i := range n {
		keys[i] = fmt.Sprintf("key-%d-%d", worker, i)
		length := r.IntN(size + 1)
		if i == 0 {
			length = size
		}
		values[i], _ = io.ReadAll(pattern.RandomN(r.Uint64(), int64(length))) // cannot fail
		total += length
		if err := s.set(ctx, keys[i], values[i]); err != nil {
			return fmt.Errorf("set of %d bytes: %w", length, err)
		}
	}
	for i := range n {
		got, err := s.get(ctx, keys[i])
		if err != nil {
			return fmt.Errorf("get of %d bytes: %w", len(values[i]), err)
		}
		if !bytes.Equal(got, values[i]) {
			return fmt.Errorf("%s: %d bytes came back of %d, and not the same", keys[i], len(got), len(values[i]))
		}
	}
	all, err := s.batch(ctx, keys)
	if err != nil {
		return fmt.Errorf("batch: %w", err)
	}
	for i := range n {
		if !bytes.Equal(all[i], values[i]) {
			return fmt.Errorf("%s: not the same in a batch", keys[i])
		}
	}
	counter := fmt.Sprintf("counter-%d", worker)
	first, err := s.count(ctx, counter)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	for i := range int64(10 * n) {
		got, err := s.count(ctx, counter)
		if err != nil {
			return fmt.Errorf("count: %w", err)
		}
		if got != first+i+1 {
			return fmt.Errorf("the counter is %d after %d", got, first+i)
		}
	}
	fmt.Printf("worker %d: %d keys, %d bytes set, got and got again, %d counts, %.2f s\n",
		worker, n, total, 10*n, time.Since(start).Seconds())
	return nil
}

type redisStore struct{ c *redis.Client }

func openRedis(addr string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) redisStore {
	return redisStore{redis.NewClient(&redis.Options{
		Addr: addr, Dialer: dial, PoolSize: 1, MaxRetries: -1, // a failure is to be seen
		DialTimeout: 30 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	})}
}

func (s redisStore) set(ctx context.Context, key string, value []byte) error {
	return s.c.Set(ctx, key, value, 0).Err()
}

func (s redisStore) get(ctx context.Context, key string) ([]byte, error) {
	return s.c.Get(ctx, key).Bytes()
}

func (s redisStore) count(ctx context.Context, key string) (int64, error) {
	return s.c.Incr(ctx, key).Result()
}

// batch asks for all keys in one pipeline.
func (s redisStore) batch(ctx context.Context, keys []string) ([][]byte, error) {
	var replies []*redis.StringCmd
	if _, err := s.c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, k := range keys {
			replies = append(replies, p.Get(ctx, k))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var all [][]byte
	for _, r := range replies {
		b, err := r.Bytes()
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func (s redisStore) close() error { return s.c.Close() }
