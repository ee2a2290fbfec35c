// Rdmanet looks after RDMA on a host: it lists devices, finds out why one does not work, reaches peers, carries the
// connections of other programs, and measures.
//
//	rdmanet devices                                   what there is
//	rdmanet doctor                                    what is missing, and what to type
//	rdmanet ping server                               reaches rping -s -P, or rdmanet ping --listen
//	rdmanet proxy rdma://:6379 tcp://127.0.0.1:6379   puts a server on RDMA
//	rdmanet bench server                              round trips and streams, to rdmanet bench --listen
//
// Without an RDMA device all of it works on the embedded one. Each command has examples in its help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/go-rdma/rdma/rdmanet"
)

// Exit statuses.
const (
	statusFailed = 1
	statusUsage  = 2
)

func main() {
	ctx, stop := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals) // another one ends the program at once
		stop(interrupted{s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// interrupted is why a context ended: by a signal.
type interrupted struct{ os.Signal }

func (i interrupted) Error() string { return i.String() }

// status is the exit status of a program that the signal has ended, as shells have it.
func (i interrupted) status() int {
	if s, ok := i.Signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return statusFailed
}

// drainLimit bounds the wait for what was written last.
const drainLimit = 5 * time.Second

// run returns the exit status.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)

	drain, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	_ = rdmanet.Drain(drain) // peers that do not answer are not waited for any longer

	var usage *usageError
	var signaled interrupted
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errQuiet):
		return statusFailed
	case errors.As(err, &usage):
		fmt.Fprintf(errOut, "%s: %v\n%s --help shows how it is used\n", cmd.CommandPath(), err, cmd.CommandPath())
		return statusUsage
	case errors.As(context.Cause(ctx), &signaled):
		return signaled.status()
	}
	fmt.Fprintf(errOut, "%s: %v\n", cmd.CommandPath(), err)
	return statusFailed
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "rdmanet",
		Short: "Looks after RDMA on this host",
		Long: `rdmanet lists RDMA devices, finds out why one does not work, reaches peers, carries the connections of other
programs over RDMA, and measures.

Where a command takes --device, that is a comma-separated list, best first, of providers ("rdmacore", "softroce") and devices
("mlx5_0", "mlx5_0/1" for one port of it). Without it, RDMANET_DEVICE says, else whatever serves the address is used: an RDMA
device of this host, or where there is none the embedded one, softroce, RoCEv2 over UDP port 4791.`,
		Example: `  rdmanet doctor
  rdmanet ping --listen                             # on one host
  rdmanet ping server                               # on another`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(devicesCommand(), doctorCommand(), pingCommand(), proxyCommand(), benchCommand())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	for _, c := range root.Commands() {
		c.Args = usageArgs(c.Args)
	}
	// A name that is no command is an argument of the root's.
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usagef("there is no command %q", args[0])
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return root
}

// usageError is a command line that cannot be.
type usageError struct{ error }

func (u *usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

// errQuiet ends the program with status 1 when all has been said.
var errQuiet = errors.New("failed")

// deviceFlag is the flag --device.
func deviceFlag(c *cobra.Command, device *string) {
	c.Flags().StringVarP(device, "device", "d", "", "the `devices` to use, see rdmanet --help")
}

// atTerminal tells whether somebody watches what is written to w.
func atTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
