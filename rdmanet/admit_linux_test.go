package rdmanet_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/leak"
	"github.com/go-rdma/rdma/rdmanet"
)

// queuePairs counts those of this process.
func queuePairs() (n int) {
	for _, o := range leak.Open() {
		if o.Kind == "queue pair" {
			n += o.Count
		}
	}
	return n
}

// TestAdmitBeforeQueuePair: who is refused has cost no queue pair.
func TestAdmitBeforeQueuePair(t *testing.T) {
	require.NoError(t, rdmanet.Drain(t.Context())) // of tests before
	before := queuePairs()
	var refuse atomic.Bool
	var then atomic.Int64
	l := listen(t, &rdmanet.ListenConfig{Admit: func(*rdmanet.Request) error {
		then.Store(int64(queuePairs()))
		if refuse.Load() {
			return errors.New("not today")
		}
		return nil
	}})
	refuse.Store(true)
	_, err := rdmanet.Dial("rdma", l.Addr().String())
	require.Error(t, err)
	assert.EqualValues(t, before+1, then.Load(), "the dialer's")
	require.NoError(t, rdmanet.Drain(t.Context()))
	assert.Equal(t, before, queuePairs())

	refuse.Store(false)
	dial(t, nil, l.Addr())
	accept(t, l)
	assert.EqualValues(t, before+1, then.Load(), "likewise")
	assert.Equal(t, before+2, queuePairs())
}
