// Command devices shows what the provider rdmacore makes of this host: each device, usable or not, and
// whether an address can be listened on and dialed.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/rdmacore"
)

func main() {
	addr := flag.String("addr", "", "listen on this address, and dial it")
	register := flag.Int("register", 0, "register so many bytes of memory on each usable device")
	flag.Parse()
	p := rdmacore.Default()
	infos, err := p.Devices()
	if err != nil {
		fmt.Println("devices:", err)
	}
	for _, i := range infos {
		if i.Unusable != nil {
			fmt.Printf("%s: %v\n", i.Name, i.Unusable)
			continue
		}
		fmt.Printf("%s: usable, %d ports, transport %d\n", i.Name, len(i.Ports), i.Transport)
		for _, port := range i.Ports {
			fmt.Printf("%s/%d: %s %s, MTU %d, %v\n", i.Name, port.Num, port.State, port.Interface, port.MTU, port.GIDs)
		}
		if *register > 0 {
			fmt.Printf("%s: register: %v\n", i.Name, reg(p, i.Name, *register))
		}
	}
	if *addr == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a := netip.MustParseAddr(*addr)
	l, err := p.Listen(ctx, &verbs.ListenAttr{PortSpace: verbs.PSTCP, Local: netip.AddrPortFrom(a, 0)})
	fmt.Println("listen:", err)
	port := uint16(7471)
	if err == nil {
		port = l.Addr().Port()
		defer l.Close()
	}
	id, err := p.Resolve(ctx, &verbs.CMIDAttr{PortSpace: verbs.PSTCP, Remote: netip.AddrPortFrom(a, port), Handler: func(verbs.Event) {}})
	fmt.Println("resolve:", err)
	if err == nil {
		fmt.Println("device:", id.Device().Name())
		if err := id.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func reg(p *rdmacore.Provider, name string, n int) error {
	d, err := p.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	a, err := pd.NewArena(n)
	if err != nil {
		return err
	}
	defer a.Close()
	mr, err := pd.RegMR(a.Bytes(), verbs.LocalWrite)
	if err != nil {
		return err
	}
	return mr.Close()
}
