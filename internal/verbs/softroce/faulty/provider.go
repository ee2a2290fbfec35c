package faulty

import (
	"context"

	"github.com/go-rdma/rdma/internal/verbs"
	"github.com/go-rdma/rdma/internal/verbs/softroce"
)

// Provider is softroce, with faults.
type Provider struct {
	*softroce.Provider
	*Faults

	// DialsOnly: what is accepted has no faults.
	DialsOnly bool
}

// Open implements [verbs.Provider].
func (p Provider) Open(name string) (verbs.Device, error) {
	if err := p.at("open device"); err != nil {
		return nil, err
	}
	d, err := p.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return device{d, p.Faults}, nil
}

// Resolve implements [verbs.Provider].
func (p Provider) Resolve(ctx context.Context, attr *verbs.CMIDAttr) (verbs.CMID, error) {
	if err := p.at("resolve"); err != nil {
		return nil, err
	}
	id, err := p.Provider.Resolve(ctx, attr)
	if err != nil {
		return nil, err
	}
	return identifier{id, p.Faults}, nil
}

// Listen implements [verbs.Provider].
func (p Provider) Listen(ctx context.Context, attr *verbs.ListenAttr) (verbs.Listener, error) {
	if err := p.at("listen"); err != nil {
		return nil, err
	}
	l, err := p.Provider.Listen(ctx, attr)
	if err != nil || p.DialsOnly {
		return l, err
	}
	return listener{l, p.Faults}, nil
}

type listener struct {
	verbs.Listener
	*Faults
}

func (l listener) GetRequest(ctx context.Context) (verbs.CMID, error) {
	if err := l.at("request"); err != nil {
		return nil, err
	}
	id, err := l.Listener.GetRequest(ctx)
	if err != nil {
		return nil, err
	}
	return identifier{id, l.Faults}, nil
}

func (l listener) Close() error { return l.after("close listener", l.Listener.Close()) }

type identifier struct {
	verbs.CMID
	*Faults
}

func (i identifier) Device() verbs.Device { return device{i.CMID.Device(), i.Faults} }

func (i identifier) CreateQP(pd verbs.PD, attr *verbs.QPInitAttr) (verbs.QP, error) {
	if err := i.at("queue pair"); err != nil {
		return nil, err
	}
	a := *attr
	a.SendCQ, a.RecvCQ = a.SendCQ.(completions).CQ, a.RecvCQ.(completions).CQ
	if a.SRQ != nil {
		a.SRQ = a.SRQ.(receives).SRQ
	}
	qp, err := i.CMID.CreateQP(pd.(domain).PD, &a)
	if err != nil {
		return nil, err
	}
	return queuePair{qp, i.Faults}, nil
}

// Connect has two steps: it fails, or the peer answers with private data of one byte.
func (i identifier) Connect(ctx context.Context, p *verbs.ConnParam) (*verbs.ConnParam, error) {
	if err := i.at("connect"); err != nil {
		return nil, err
	}
	rep, err := i.CMID.Connect(ctx, p)
	if err == nil && i.at("exchange") != nil {
		odd := *rep
		odd.PrivateData = []byte{7}
		return &odd, nil
	}
	return rep, err
}

func (i identifier) Accept(p *verbs.ConnParam) error {
	if err := i.at("accept"); err != nil {
		return err
	}
	return i.CMID.Accept(p)
}

func (i identifier) Close() error { return i.after("close identifier", i.CMID.Close()) }
