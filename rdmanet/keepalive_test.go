package rdmanet

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestKeepAliveDefaults(t *testing.T) {
	def := net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}
	for _, c := range []struct {
		period time.Duration
		cfg    net.KeepAliveConfig
		want   net.KeepAliveConfig
	}{
		{0, net.KeepAliveConfig{}, def},
		{-1, net.KeepAliveConfig{}, net.KeepAliveConfig{}},
		{time.Second, net.KeepAliveConfig{}, net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 9}},
		{-1, net.KeepAliveConfig{Enable: true}, def},
		{time.Second, net.KeepAliveConfig{Enable: true, Count: 3}, net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3}},
		{0, net.KeepAliveConfig{Enable: true, Idle: -1, Interval: time.Minute, Count: -1}, net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: time.Minute, Count: 9}},
		{0, net.KeepAliveConfig{Idle: time.Hour}, def},
	} {
		assert.Equal(t, c.want, keepAlive(c.period, c.cfg))
	}
}
