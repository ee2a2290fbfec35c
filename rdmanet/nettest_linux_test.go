package rdmanet_test

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// pipe connects a dialer and a listener.
func pipe(dial func(addr string) (net.Conn, error), l net.Listener) (c1, c2 net.Conn, stop func(), err error) {
	type result struct {
		c   net.Conn
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := l.Accept()
		accepted <- result{c, err}
	}()
	c1, err = dial(l.Addr().String())
	if err != nil {
		l.Close()
		<-accepted
		return nil, nil, nil, err
	}
	r := <-accepted
	if r.err != nil {
		return nil, nil, nil, errors.Join(r.err, c1.Close(), l.Close())
	}
	return c1, r.c, func() {
		c1.Close()
		r.c.Close()
		l.Close()
	}, nil
}

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := rdmaListen()
		if err != nil {
			return nil, nil, nil, err
		}
		return pipe(rdmaDial, l)
	})
}

func TestConnIPv6(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		l, err := rdmaListen6()
		if err != nil {
			return nil, nil, nil, err
		}
		return pipe(rdmaDial, l)
	})
}
