package recipes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/rdmanet"
)

// go-redis: values, pipelines, publish and subscribe, transactions, and a deadline.
func TestRedis(t *testing.T) {
	need(t, "redis-server")
	port := freePort(t)
	start(t, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir()).says("Ready to accept connections")
	rdb := NewRedis(proxied(t, port))
	defer rdb.Close()
	ctx := limited(t)
	before := dials()

	value := strings.Repeat("value", 100000)
	require.NoError(t, rdb.Set(ctx, "key", value, 0).Err())
	got, err := rdb.Get(ctx, "key").Result()
	require.NoError(t, err)
	assert.Equal(t, value, got)

	counts, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 1000 {
			p.Incr(ctx, "count")
		}
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, int64(1000), counts[999].(*redis.IntCmd).Val())

	sub := rdb.Subscribe(ctx, "channel")
	defer sub.Close()
	_, err = sub.Receive(ctx)
	require.NoError(t, err)
	require.NoError(t, rdb.Publish(ctx, "channel", "news").Err())
	m, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	assert.Equal(t, "news", m.Payload)

	// A command that waits on the server ends with its context.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	require.Error(t, rdb.BLPop(short, 0, "nothing").Err())
	assert.Less(t, time.Since(begun), 10*time.Second)
	require.NoError(t, rdb.Ping(ctx).Err(), "and others go on")
	assert.Greater(t, dials(), before, "it went over RDMA")
}

// pgx: queries, many rows, COPY, LISTEN, and a deadline, at which the server stops too.
func TestPostgreSQL(t *testing.T) {
	port := startPostgreSQL(t)
	ctx := limited(t)
	before := dials()
	pool, err := NewPool(ctx, "postgres://postgres@"+proxied(t, port)+"/postgres?sslmode=disable")
	require.NoError(t, err)
	defer pool.Close()

	rows, err := pool.Query(ctx, "select repeat('x', 1000) from generate_series(1, 20000)")
	require.NoError(t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	assert.Len(t, texts, 20000)
	assert.Equal(t, strings.Repeat("x", 1000), texts[19999])

	_, err = pool.Exec(ctx, "create table t (n int, s text)")
	require.NoError(t, err)
	n, err := pool.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"n", "s"}, pgx.CopyFromSlice(10000, func(i int) ([]any, error) {
		return []any{i, strings.Repeat("y", i%500)}, nil
	}))
	require.NoError(t, err)
	assert.Equal(t, int64(10000), n)
	var sum int
	require.NoError(t, pool.QueryRow(ctx, "select sum(length(s)) from t").Scan(&sum))
	assert.Equal(t, 20*499*500/2, sum)

	c, err := pool.Acquire(ctx)
	require.NoError(t, err)
	_, err = c.Exec(ctx, "listen channel")
	require.NoError(t, err)
	_, err = pool.Exec(ctx, "notify channel, 'news'")
	require.NoError(t, err)
	note, err := c.Conn().WaitForNotification(ctx)
	require.NoError(t, err)
	assert.Equal(t, "news", note.Payload)
	c.Release()

	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = pool.Exec(short, "select pg_sleep(3600)")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	// What pgx sends on a connection of its own to say so.
	require.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(ctx, "select count(*) from pg_stat_activity where query like '%pg_sleep(3600)%' and state = 'active' and pid <> pg_backend_pid()").Scan(&n)
		return assert.NoError(t, err) && n == 0
	}, patience, 20*time.Millisecond, "the server still sleeps")
	assert.Greater(t, dials(), before, "it went over RDMA")
}

// nats.go: requests, many messages, and a server that comes back.
func TestNATS(t *testing.T) {
	need(t, "nats-server")
	port := freePort(t)
	run := func() *process {
		p := start(t, "nats-server", "-a", "127.0.0.1", "-p", port)
		p.says("Server is ready")
		return p
	}
	server := run()
	before := dials()
	nc, err := NewNATS("nats://" + proxied(t, port))
	require.NoError(t, err)
	defer nc.Close()

	_, err = nc.Subscribe("question", func(m *nats.Msg) { _ = m.Respond(append([]byte("re: "), m.Data...)) })
	require.NoError(t, err)
	ask := func() (string, error) {
		m, err := nc.Request("question", []byte("what?"), 5*time.Second)
		if err != nil {
			return "", err
		}
		return string(m.Data), nil
	}
	answer, err := ask()
	require.NoError(t, err)
	assert.Equal(t, "re: what?", answer)

	sub, err := nc.SubscribeSync("many")
	require.NoError(t, err)
	body := bytes.Repeat([]byte{7}, 10000)
	for i := range 1000 {
		require.NoError(t, nc.Publish("many", append(strconv.AppendInt(nil, int64(i), 10), body...)))
	}
	for i := range 1000 {
		m, err := sub.NextMsg(patience)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(m.Data, strconv.AppendInt(nil, int64(i), 10)))
	}

	server.kill()
	run()
	require.Eventually(t, func() bool {
		answer, err := ask()
		return err == nil && answer == "re: what?"
	}, patience, 100*time.Millisecond, "it does not come back")
	assert.Greater(t, dials(), before, "it went over RDMA")
}

var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello by ", r.Proto) })

// serving runs one of the servers on a port that is free, and returns its address when it answers.
func serving(t *testing.T, serve func(addr string) error) string {
	t.Helper()
	l, err := rdmanet.Listen("rdma", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	go func() { _ = serve(addr) }() // until the end of the process
	require.Eventually(t, func() bool {
		c, err := rdmanet.Dial("rdma", addr)
		if err != nil {
			return false
		}
		return assert.NoError(t, c.Close())
	}, patience, 10*time.Millisecond)
	return addr
}

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	defer c.CloseIdleConnections()
	resp, err := c.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

func TestHTTP(t *testing.T) {
	server, client := identity(t)
	addr := serving(t, func(addr string) error { return ServeHTTP(addr, hello) })
	assert.Equal(t, "hello by HTTP/1.1", get(t, HTTPClient(nil), "http://"+addr))

	addr = serving(t, func(addr string) error { return ServeHTTPS(addr, hello, server.Clone()) })
	assert.Equal(t, "hello by HTTP/2.0", get(t, HTTPClient(client.Clone()), "https://"+addr))
	c, err := DialTLS(limited(t), addr, client)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	assert.Contains(t, string(b), "hello by HTTP/1.0")

	addr = serving(t, func(addr string) error {
		l, err := rdmanet.Listen("rdma", addr)
		if err != nil {
			return err
		}
		return ServeH2C(l, hello)
	})
	assert.Equal(t, "hello by HTTP/2.0", get(t, H2CClient(), "http://"+addr))
}

func TestQUIC(t *testing.T) {
	server, client := identity(t)
	server.NextProtos, client.NextProtos = []string{"echo"}, []string{"echo"}
	ctx := limited(t)
	tr, l, err := ListenQUIC(ctx, "127.0.0.1:0", server)
	require.NoError(t, err)
	defer tr.Conn.Close()
	defer tr.Close()
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			return
		}
		s, err := c.AcceptStream(ctx)
		if err != nil {
			return
		}
		_, _ = io.Copy(s, s)
		_ = s.Close()
	}()
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(l.Addr().(*rdmanet.Addr).Port)))
	mine, c, err := DialQUIC(ctx, addr, client)
	require.NoError(t, err)
	defer mine.Conn.Close()
	defer mine.Close()
	s, err := c.OpenStreamSync(ctx)
	require.NoError(t, err)
	_, err = io.WriteString(s, strings.Repeat("echo ", 100000))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	b, err := io.ReadAll(s)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("echo ", 100000), string(b))
	require.NoError(t, c.CloseWithError(0, ""))
}
