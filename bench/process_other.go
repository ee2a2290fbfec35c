//go:build !linux

package main

import (
	"errors"
	"time"
)

func processorTime(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

func (*usage) read(int) error { return errors.ErrUnsupported }

func sysctls() string { return "settings of the system unknown" }
