package dgram

import (
	"net"

	"github.com/go-rdma/rdma/internal/verbs"
)

// admitting bounds how many lookups Config.Admit is asked about at a time.
const admitting = 16

// Serve answers the lookups that a listener gets, with the queue pair that the socket has on the device of each. The listener
// is the socket's from now on.
func (s *Socket) Serve(l verbs.Listener) error {
	if !s.begin() {
		_ = l.Close() // nobody needs it
		return net.ErrClosed
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	go func() {
		defer s.tasks.Done()
		slots := make(chan struct{}, admitting)
		for {
			id, err := l.GetRequest(s.ctx)
			if err != nil {
				return // closed, or the device is gone, which the endpoint tells
			}
			if s.cfg.Admit == nil {
				s.answer(id)
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-s.ctx.Done():
				_ = id.Close() // which rejects
				return
			}
			s.tasks.Go(func() { // the function is not ours, and may take its time
				if s.cfg.Admit(id) != nil {
					_, _ = id.Reject(nil), id.Close()
				} else {
					s.answer(id)
				}
				<-slots
			})
		}
	}()
	return nil
}

// answer answers one. An error means that the peer asks again, or that the device is gone.
func (s *Socket) answer(id verbs.CMID) {
	defer id.Close() // which rejects what was not answered
	ud, ok := id.(verbs.UDCMID)
	if !ok {
		return
	}
	e, err := s.endpoint(s.ctx, epKey{id.Device(), verbs.PSUDP, s.cfg.Local})
	if err != nil {
		return
	}
	_ = ud.Reply(e.num, 0, nil)
}
