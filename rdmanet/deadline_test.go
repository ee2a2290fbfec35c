package rdmanet

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func passed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline
		d.init()
		waiting := d.wait()
		assert.False(t, passed(waiting))

		d.set(time.Now().Add(time.Second))
		time.Sleep(time.Second - 1)
		synctest.Wait()
		assert.False(t, passed(waiting))
		d.set(time.Now().Add(time.Second)) // put off at the last moment
		time.Sleep(time.Second - 1)
		synctest.Wait()
		assert.False(t, passed(waiting))
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		assert.True(t, passed(waiting), "one who waits already learns of it")
		assert.True(t, passed(d.wait()))

		d.set(time.Time{})
		assert.False(t, passed(d.wait()), "lifted")
		d.set(time.Now().Add(-time.Hour))
		assert.True(t, passed(d.wait()), "past at once")
		d.set(time.Now().Add(time.Hour))
		assert.False(t, passed(d.wait()))
		d.set(time.Time{})
	})
}
