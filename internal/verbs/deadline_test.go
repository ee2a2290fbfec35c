package verbs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-rdma/rdma/internal/verbs"
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
		var d verbs.Deadline
		waiting := d.Past()
		assert.False(t, passed(waiting))

		d.Set(time.Now().Add(time.Second))
		time.Sleep(time.Second - 1)
		synctest.Wait()
		assert.False(t, passed(waiting))
		d.Set(time.Now().Add(time.Second)) // put off at the last moment
		time.Sleep(time.Second - 1)
		synctest.Wait()
		assert.False(t, passed(waiting))
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		assert.True(t, passed(waiting), "one who waits already learns of it")
		assert.True(t, passed(d.Past()))

		d.Set(time.Time{})
		assert.False(t, passed(d.Past()), "lifted")
		d.Set(time.Now().Add(-time.Hour))
		assert.True(t, passed(d.Past()), "past at once")
		var nobody verbs.Deadline
		nobody.Set(time.Now().Add(time.Second))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(t, passed(nobody.Past()), "who begins to wait afterwards learns of it too")
		d.Set(time.Now().Add(time.Hour))
		assert.False(t, passed(d.Past()))
		d.Set(time.Time{})
	})
}
