package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Port spaces, as rdma_create_id(3) knows them.
const (
	psUDP   = 0x0111
	psIPoIB = 0x0002
)

type options struct {
	group       string // -m or -M
	unmapped    bool
	send        bool
	bind        string
	connections int
	messages    int
	size        int
	space       int
	sendOnly    bool
	noLoopback  bool

	device  string
	verbose bool
	json    bool
	timeout time.Duration
}

var errUsage = errors.New("wrong usage")

const usage = `	-m multicast_address
	[-M unmapped_multicast_address]
	 replaces -m and requires -b
	[-s(ender)]
	[-b bind_address]
	[-c connections]
	[-C message_count]
	[-S message_size]
	[-p port_space - %#x for UDP (default), %#x for IPOIB]
	[-o join as a send-only full-member]
	[-l join without multicast loopback]
	[-device name, or several, separated by commas]
	[-v(erbose) rates and losses]
	[-json: the results as one object on standard output, and all else on standard error]
	[-timeout duration after which a receiver that gets nothing gives up, as 30s]
`

// parse reads arguments as getopt(3) does: options may be joined ("-so", "-C3"), stand anywhere, and "--" ends
// them; what is no option is left alone. It has said what is wrong when it returns an error.
func parse(program string, args []string, out, errOut io.Writer) (*options, error) {
	o := &options{connections: 1, messages: 10, size: 100, space: psUDP}
	wrong := func(format string, a ...any) (*options, error) {
		fmt.Fprintf(errOut, "%s: %s\n", program, fmt.Sprintf(format, a...))
		fmt.Fprintf(out, "usage: %s\n"+usage, program, psUDP, psIPoIB)
		return nil, errUsage
	}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			continue
		}
		// The names that are longer than a letter begin with none of getopt's.
		if strings.TrimLeft(arg, "-") == "json" {
			o.json = true
			continue
		}
		if name, value, has := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == "device" || name == "timeout" {
			if !has {
				if len(args) == 0 {
					return wrong("option requires an argument -- '%s'", name)
				}
				value, args = args[0], args[1:]
			}
			var err error
			if name == "device" {
				o.device = value
			} else if o.timeout, err = seconds(value); err != nil {
				return wrong("-timeout %s: a duration is needed, as 30s", value)
			}
			continue
		}
		for letters := arg[1:]; letters != ""; {
			c := letters[0]
			letters = letters[1:]
			value := ""
			if strings.IndexByte("mMbcCSp", c) >= 0 {
				if value, letters = letters, ""; value == "" {
					if len(args) == 0 {
						return wrong("option requires an argument -- '%c'", c)
					}
					value, args = args[0], args[1:]
				}
			}
			if err := o.set(c, value); errors.Is(err, errUsage) {
				return wrong("invalid option -- '%c'", c)
			} else if err != nil {
				return wrong("-%c %s: %v", c, value, err)
			}
		}
	}
	if o.unmapped && o.bind == "" {
		fmt.Fprintln(out, "unmapped multicast address requires binding to source address")
		return nil, errUsage
	}
	return o, nil
}

// set sets one option.
func (o *options) set(c byte, value string) (err error) {
	switch c {
	case 'm', 'M':
		o.group, o.unmapped = value, o.unmapped || c == 'M'
	case 's':
		o.send = true
	case 'b':
		o.bind = value
	case 'c':
		o.connections, err = number(value)
	case 'C':
		o.messages, err = number(value)
	case 'S':
		o.size, err = number(value)
	case 'p':
		n, e := strconv.ParseInt(value, 0, 32) // base 0: as strtol(3)
		if o.space = int(n); e != nil || n != psUDP && n != psIPoIB {
			err = fmt.Errorf("the port space is %#x (UDP) or %#x (IPOIB)", psUDP, psIPoIB)
		}
	case 'o':
		o.sendOnly = true
	case 'l':
		o.noLoopback = true
	case 'v':
		o.verbose = true
	default:
		err = errUsage
	}
	return err
}

// number reads a count. A C program takes what is none for 0.
func number(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, errors.New("a number is needed, of 0 or more")
	}
	return int(n), nil
}

// seconds reads a duration; a number alone is seconds.
func seconds(s string) (time.Duration, error) {
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		s = strconv.FormatFloat(n, 'f', -1, 64) + "s"
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = errUsage
	}
	return d, err
}
