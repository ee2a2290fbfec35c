package rdmanet_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/go-rdma/rdma/rdmanet"
)

// Statistics print as a line in which each of their fields is.
func TestStatsAsText(t *testing.T) {
	number := uint64(1000)
	var fill func(v reflect.Value) []string
	fill = func(v reflect.Value) (want []string) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Struct:
				want = append(want, fill(f)...)
			case reflect.String:
				f.SetString(v.Type().Field(i).Name)
				want = append(want, f.String())
			default:
				number++
				f.Set(reflect.ValueOf(number).Convert(f.Type()))
				want = append(want, fmt.Sprint(number))
			}
		}
		return want
	}
	for _, s := range []fmt.Stringer{new(rdmanet.Stats), new(rdmanet.DeviceStats), new(rdmanet.PacketStats), new(rdmanet.ListenerStats)} {
		want := fill(reflect.ValueOf(s).Elem())
		for _, w := range want {
			assert.Contains(t, s.String(), w, "%T", s)
		}
		assert.NotContains(t, s.String(), "\n")
		assert.Equal(t, s.String(), fmt.Sprint(reflect.ValueOf(s).Elem()), "as a value too")
	}
}
