package faulty

import "github.com/go-rdma/rdma/internal/verbs"

// device is a value, as internal/rc asks of devices: the same for the same device.
type device struct {
	verbs.Device
	*Faults
}

func (d device) Dup() (verbs.Device, error) {
	if err := d.at("open device"); err != nil {
		return nil, err
	}
	dev, err := d.Device.Dup()
	if err != nil {
		return nil, err
	}
	return device{dev, d.Faults}, nil
}

func (d device) AllocPD() (verbs.PD, error) {
	if err := d.at("protection domain"); err != nil {
		return nil, err
	}
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return domain{pd, d.Faults}, nil
}

func (d device) CreateCQ(attr *verbs.CQAttr) (verbs.CQ, error) {
	if err := d.at("completion queue"); err != nil {
		return nil, err
	}
	cq, err := d.Device.CreateCQ(attr)
	if err != nil {
		return nil, err
	}
	return completions{cq, d.Faults}, nil
}

func (d device) Close() error { return d.after("close device", d.Device.Close()) }

type domain struct {
	verbs.PD
	*Faults
}

func (p domain) NewArena(size int) (verbs.Arena, error) {
	if err := p.at("arena"); err != nil {
		return nil, err
	}
	return p.PD.NewArena(size)
}

func (p domain) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.at("register"); err != nil {
		return nil, err
	}
	m, err := p.PD.RegMR(mem, access)
	if err != nil {
		return nil, err
	}
	return region{m, p.Faults}, nil
}

func (p domain) CreateSRQ(attr *verbs.SRQAttr) (verbs.SRQ, error) {
	if err := p.at("shared receive queue"); err != nil {
		return nil, err
	}
	s, err := p.PD.CreateSRQ(attr)
	if err != nil {
		return nil, err
	}
	return receives{s, p.Faults}, nil
}

func (p domain) Close() error { return p.after("close domain", p.PD.Close()) }

type region struct {
	verbs.MR
	*Faults
}

func (m region) Close() error { return m.after("deregister", m.MR.Close()) }

// Advise is taken, unless it is to fail.
func (m region) Advise(int, int, verbs.Advice) error { return m.at("advise") }

type receives struct {
	verbs.SRQ
	*Faults
}

func (s receives) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := s.at("post shared receives"); err != nil {
		return 0, err
	}
	return s.SRQ.PostRecv(wrs)
}

func (s receives) Close() error { return s.after("close shared queue", s.SRQ.Close()) }

type completions struct {
	verbs.CQ
	*Faults
}

func (q completions) Arm() error {
	if err := q.at("arm"); err != nil {
		return err
	}
	return q.CQ.Arm()
}

func (q completions) Poll(wc []verbs.WC) (int, error) {
	if err := q.at("poll"); err != nil {
		return 0, err
	}
	return q.CQ.Poll(wc)
}

func (q completions) Close() error { return q.after("close completion queue", q.CQ.Close()) }

type queuePair struct {
	verbs.QP
	*Faults
}

func (q queuePair) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := q.at("post receives"); err != nil {
		return 0, err
	}
	return q.QP.PostRecv(wrs)
}

func (q queuePair) PostSend(wrs []verbs.SendWR) (int, error) {
	if err := q.at("post sends"); err != nil {
		return 0, err
	}
	return q.QP.PostSend(wrs)
}
