// Mckey is the multicast test of librdmacm, on package rdmanet: it joins a group, once or several times, and sends datagrams
// to it or receives them.
//
//	mckey -m 239.1.2.3                 receives ten datagrams
//	mckey -m 239.1.2.3 -s              sends ten
//
// Options, defaults, output and exit status are those of mckey(1), so either program may be at either end. What it
// does besides:
//
//   - Without an RDMA device it works all the same, on the embedded one.
//   - -device says which device to use, as the field Device of rdmanet.ListenConfig: "softroce", "rdmacore", "mlx5_0".
//   - -v tells rates and, where the sender is this program too, how many datagrams were lost.
//   - -json prints the results as one object on standard output, for programs; what C's prints goes to standard error then. It
//     counts what came from whom, and was lost or dropped.
//   - -timeout ends a receiver that gets nothing for so long, with exit status 146 (of -110, ETIMEDOUT).
//   - Ctrl-C leaves the group and ends with exit status 130, SIGTERM with 143.
//   - What fails is explained on standard error.
//   - A receiver does not wait for three seconds before it reads. A sender does, as it gives others the time to join.
//   - Numbers that are none, and negative ones, are refused. Any -C is possible: the device's queues do not limit it.
//   - -M takes the group identifiers that RoCE has, ::ffff:239.1.2.3 for an IPv4 group.
//   - With -l, a connection does not get what it has sent itself. Other receivers on its host do.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settle is how long a sender waits when it has joined: switches need a while to be set up, other members to join.
const settle = 3 * time.Second

func main() {
	o, err := parse(os.Args[0], os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		os.Exit(1)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals) // another one ends the program at once
		stop(interrupted{s})
	}()
	os.Exit((&test{options: o, out: os.Stdout, errOut: os.Stderr, settle: settle}).main(ctx) & 0xff)
}

// interrupted is why a context ended: by a signal.
type interrupted struct{ os.Signal }

func (i interrupted) Error() string { return i.String() }

// status is the exit status of a program that the signal has ended, as shells have it.
func (i interrupted) status() int {
	if s, ok := i.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return 1
}

// test is one run of the program.
type test struct {
	*options
	out, errOut io.Writer
	settle      time.Duration
	ctx         context.Context // ends with a signal
	results     results
}

// main returns the exit status, which may be negative, as C programs return it.
func (t *test) main(ctx context.Context) int {
	role := "server"
	if t.send {
		role = "client"
	}
	out := t.out
	if t.json {
		t.out = t.errOut
	}
	t.printf("mckey: starting %s\n", role)
	t.ctx = ctx
	err := t.run()
	code := 0
	var f *failure
	switch i := (interrupted{}); {
	case errors.As(context.Cause(ctx), &i):
		t.explain("mckey: %v, the group was left", i)
		code = i.status()
	case errors.As(err, &f):
		code = f.status
	case err != nil:
		t.explain("mckey: %v", err)
		code = -1
	}
	t.printf("test complete\n")
	t.printf("return status %d\n", code)
	if t.json {
		t.results.Status = code & 0xff // as the shell has it
		if err := t.results.write(out, t.options, err); err != nil {
			t.explain("mckey: %v", err)
			return -1
		}
	}
	return code
}
