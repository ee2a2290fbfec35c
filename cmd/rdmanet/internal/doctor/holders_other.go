//go:build !linux

package doctor

func (d *doctor) port() {}
