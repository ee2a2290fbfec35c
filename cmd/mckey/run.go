package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/go-rdma/rdma/rdmanet"
)

// failure is an error that has been told, and the status that the program ends with.
type failure struct {
	status int
	why    error // may be nil
}

func (f *failure) Error() string {
	if f.why != nil {
		return f.why.Error()
	}
	return fmt.Sprint("status ", f.status)
}

func (t *test) printf(format string, a ...any) { fmt.Fprintf(t.out, format, a...) }

// explain says something that C's mckey does not say.
func (t *test) explain(format string, a ...any) { fmt.Fprintf(t.errOut, format+"\n", a...) }

// fails tells of an error as perror(3) does, and then what it knows of it.
func (t *test) fails(what string, err error) error {
	if t.ctx.Err() != nil {
		return t.ctx.Err() // the user knows why
	}
	short := "Unknown error"
	if e := syscall.Errno(0); errors.As(err, &e) {
		short = capital(e.Error())
	} else if errors.Is(err, errors.ErrUnsupported) {
		short = "Operation not supported"
	} else if errors.Is(err, rdmanet.ErrNoDevice) {
		short = "No such device"
	}
	t.explain("mckey: %s: %s", what, short)
	t.explain("mckey: %v", err)
	return &failure{status: -1, why: fmt.Errorf("%s: %w", what, err)}
}

func capital(s string) string {
	r := []rune(s)
	r[0] = unicode.ToUpper(r[0])
	return string(r)
}

// member is one connection: a queue pair that is a member of the group.
type member struct {
	*rdmanet.PacketConn
	group *rdmanet.Addr
	qpn   uint32
	*result
}

func (t *test) run() error {
	var bind, group netip.Addr
	var err error
	if t.bind != "" {
		if bind, err = t.lookup(t.bind); err != nil {
			return err
		}
	}
	if !t.unmapped {
		if group, err = t.lookup(t.group); err != nil {
			return err
		}
	} else if group, err = netip.ParseAddr(t.group); t.group == "0" {
		group = netip.IPv6Unspecified()
	} else if err != nil || !group.Is6() {
		t.printf("mckey: joining\n")
		return t.fails("failure joining", fmt.Errorf("%q is no group identifier, which are 16 bytes, as ::ffff:239.1.2.3, or 0 for a fresh one: %w", t.group, syscall.EINVAL))
	}
	t.printf("mckey: joining\n")
	members := make([]*member, 0, min(t.connections, 1024))
	defer func() {
		for _, m := range members {
			m.Close() // which leaves the group
		}
	}()
	for range t.connections {
		m, err := t.join(bind, group)
		if err != nil {
			return err
		}
		members = append(members, m)
		m.result = t.results.add(m.group, m.qpn)
		if !t.unmapped && group.IsUnspecified() {
			group = m.group.IP // the others join that one
		}
	}
	if t.size == 0 {
		t.messages = 0 // as ever
	}
	if t.send || t.messages == 0 {
		if err := sleep(t.ctx, t.settle); err != nil {
			return err
		}
	}
	if t.messages == 0 {
		return nil
	}
	each, started := t.receive, "receiving data transfers"
	if t.send {
		each, started = t.sendAll, "initiating data transfers"
	}
	t.printf("%s\n", started)
	stop := context.AfterFunc(t.ctx, func() {
		for _, m := range members {
			m.Close() // ends what waits
		}
	})
	defer stop()
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = each(m) })
	}
	wg.Wait()
	if t.ctx.Err() != nil {
		return t.ctx.Err()
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	t.printf("data transfers complete\n")
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lookup is getaddrinfo(3), of which the first address counts.
func (t *test) lookup(host string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(t.ctx, "ip", host)
	if err == nil && len(addrs) > 0 {
		return addrs[0].Unmap(), nil
	}
	status, why := -2, "Name or service not known" // EAI_NONAME
	if dns := (*net.DNSError)(nil); host != "" && errors.As(err, &dns) && dns.Temporary() {
		status, why = -3, "Temporary failure in name resolution" // EAI_AGAIN
	}
	t.printf("getaddrinfo failed (%s) - invalid hostname or IP address\n", why)
	switch {
	case host == "":
		t.explain("mckey: the group is missing: -m 239.1.2.3, for example")
	case err != nil:
		t.explain("mckey: %v", err)
	}
	return netip.Addr{}, &failure{status: status, why: fmt.Errorf("%q: %s", host, why)}
}

// join makes a member.
func (t *test) join(bind, group netip.Addr) (*member, error) {
	var flags rdmanet.JoinFlags
	if t.sendOnly {
		flags |= rdmanet.JoinSendOnly
	}
	if t.unmapped {
		flags |= rdmanet.JoinUnmapped
	}
	lc := &rdmanet.ListenConfig{Device: t.device, ReadBuffer: t.readBuffer()}
	m := &member{}
	var err error
	if bind.IsValid() && !bind.IsUnspecified() && t.space == psUDP {
		err = t.joinBound(lc, m, bind, group, flags)
	} else {
		err = t.joinByRoute(lc, m, bind, group, flags)
	}
	if err == nil {
		err = m.SetMulticastLoopback(!t.noLoopback)
	}
	if err != nil {
		if m.PacketConn != nil {
			m.Close()
		}
		return nil, err
	}
	t.printf("mckey: joined dgid: %v mlid 0x%x sl %d\n", netip.AddrFrom16(m.group.UD.GID), m.group.UD.LID, m.group.UD.SL)
	return m, nil
}

// joinBound joins with a queue pair that is bound to an address.
func (t *test) joinBound(lc *rdmanet.ListenConfig, m *member, bind, group netip.Addr, f rdmanet.JoinFlags) error {
	c, err := lc.ListenPacket(t.ctx, "rdma-ud", net.JoinHostPort(bind.String(), "0"))
	if err != nil {
		return t.fails("addr bind failure", err)
	}
	m.PacketConn = c.(*rdmanet.PacketConn)
	m.qpn = m.LocalAddr().(*rdmanet.Addr).UD.QPN
	if !t.unmapped && group.Is4() != bind.Is4() {
		return t.fails("resolve addr failure", fmt.Errorf("%v and %v are of different families: %w", group, bind, syscall.EINVAL))
	}
	if err := t.fits(m); err != nil {
		return err
	}
	m.group, err = m.JoinGroup(t.ctx, nil, &rdmanet.Addr{IP: group}, f)
	if err != nil {
		return t.fails("failure joining", err)
	}
	return nil
}

// joinByRoute leaves the interface to the routes or, in the port space IPOIB, makes a queue pair of that alone.
func (t *test) joinByRoute(lc *rdmanet.ListenConfig, m *member, bind, group netip.Addr, f rdmanet.JoinFlags) error {
	what := "resolve addr failure"
	var ifi *net.Interface
	if t.space == psIPoIB {
		f |= rdmanet.JoinIPoIB
		if bind.IsValid() && !bind.IsUnspecified() {
			what = "addr bind failure"
			var err error
			if ifi, err = interfaceOf(bind); err != nil {
				return t.fails(what, err)
			}
		}
	}
	c, err := lc.ListenMulticast(t.ctx, "rdma-ud", ifi, &rdmanet.Addr{IP: group}, f)
	if err != nil {
		return t.fails(what, err)
	}
	m.PacketConn = c
	m.group = c.LocalAddr().(*rdmanet.Addr)
	return t.fits(m)
}

// interfaceOf is the one with an address.
func interfaceOf(addr netip.Addr) (*net.Interface, error) {
	ifis, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for i := range ifis {
		addrs, err := ifis[i].Addrs()
		if err != nil {
			continue // it has gone
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == addr.WithZone("") {
				return &ifis[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no interface has the address %v: %w", addr, syscall.EADDRNOTAVAIL)
}

// fits refuses messages that are longer than a packet.
func (t *test) fits(m *member) error {
	if limit := m.MaxPayload(); t.messages > 0 && t.size > limit {
		t.printf("mckey: message_size %d is larger than active mtu %d\n", t.size, limit)
		return &failure{status: -1, why: fmt.Errorf("messages of %d bytes: %w", t.size, syscall.EMSGSIZE)}
	}
	return nil
}

// readBuffer has room for all messages, within reason.
func (t *test) readBuffer() int {
	const longest, most = 4096, 2048
	if t.send {
		return 16 * longest // the least
	}
	return max(256, min(t.messages, most)) * longest
}
