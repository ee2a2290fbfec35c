package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// memcachedStore speaks memcached's text protocol.
type memcachedStore struct {
	c net.Conn
	r *bufio.Reader
}

func openMemcached(
	ctx context.Context, addr string, dial func(ctx context.Context, network, addr string) (net.Conn, error),
) (store, error) {
	c, err := dial(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	return &memcachedStore{c: c, r: bufio.NewReader(c)}, nil
}

func (s *memcachedStore) ask(format string, args ...any) error {
	if err := s.c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.c, format, args...)
	return err
}

func (s *memcachedStore) line() (string, error) {
	line, err := s.r.ReadString('\n')
	return strings.TrimSuffix(line, "\r\n"), err
}

func (s *memcachedStore) expect(want string) error {
	switch line, err := s.line(); {
	case err != nil:
		return err
	case line != want:
		return fmt.Errorf("the server says %q, not %q", line, want)
	}
	return nil
}

func (s *memcachedStore) set(_ context.Context, key string, value []byte) error {
	if err := s.ask("set %s 0 0 %d\r\n%s\r\n", key, len(value), value); err != nil {
		return err
	}
	return s.expect("STORED")
}

func (s *memcachedStore) get(ctx context.Context, key string) ([]byte, error) {
	all, err := s.batch(ctx, []string{key})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func (s *memcachedStore) batch(_ context.Context, keys []string) ([][]byte, error) {
	if err := s.ask("get %s\r\n", strings.Join(keys, " ")); err != nil {
		return nil, err
	}
	var all [][]byte
	for _, k := range keys {
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		var length int
		if _, err := fmt.Sscanf(line, "VALUE "+k+" 0 %d", &length); err != nil || length < 0 || length > 1<<20 {
			return nil, fmt.Errorf("the server says %q, not the value of %s", line, k)
		}
		b := make([]byte, length)
		if _, err := io.ReadFull(s.r, b); err != nil {
			return nil, err
		}
		if err := s.expect(""); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, s.expect("END")
}

func (s *memcachedStore) count(_ context.Context, key string) (int64, error) {
	if err := s.ask("incr %s 1\r\n", key); err != nil {
		return 0, err
	}
	line, err := s.line()
	if err != nil {
		return 0, err
	}
	if line == "NOT_FOUND" {
		if err := s.ask("set %s 0 0 1\r\n1\r\n", key); err != nil {
			return 0, err
		}
		return 1, s.expect("STORED")
	}
	var n int64
	_, err = fmt.Sscanf(line, "%d", &n)
	return n, err
}

func (s *memcachedStore) close() error {
	if err := s.ask("quit\r\n"); err != nil {
		return err
	}
	switch _, err := s.r.ReadByte(); {
	case err == nil:
		return errors.New("the server answers quit")
	case !errors.Is(err, io.EOF):
		return err
	}
	return s.c.Close()
}
