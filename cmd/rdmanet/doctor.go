package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-rdma/rdma/cmd/rdmanet/internal/doctor"
	"github.com/go-rdma/rdma/cmd/rdmanet/internal/rping"
)

func doctorCommand() *cobra.Command {
	var cfg doctor.Config
	var asJSON, verbose bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what RDMA lacks on this host, and what to type",
		Long: `doctor looks at all that RDMA needs, in the order in which it fails: devices and modules of the kernel, how this program was
built, libraries, /dev/infiniband, the limit of locked memory, links, addresses, UDP port 4791, signs of NAT. Then it
connects to itself over each provider and device, shared memory included, and moves data. It changes nothing on the host.

With --peer it reaches another host too, on which "rdmanet ping --listen" or "rping -s" runs.

What it finds is of the user that runs it, in the container or network namespace where it runs: run it as the program would run that
does not work. The exit status is 1 if data went over nothing that leads to other hosts (with --device: over none of those), or not to
the peer.`,
		Example: `  rdmanet doctor
  rdmanet doctor -d rdmacore                        # hardware or rdma_rxe shall work, not only the embedded device
  sudo -u service rdmanet doctor
  rdmanet doctor --peer server
  rdmanet doctor --json | jq .first.fix`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := c.OutOrStdout()
			if cfg.Peer != "" {
				cfg.Peer = withPort(cfg.Peer, rping.Port)
			}
			if !asJSON {
				cfg.Tell = func(k doctor.Check) { writeCheck(out, k, verbose) }
			}
			r := doctor.Run(c.Context(), cfg)
			if asJSON {
				if err := writeJSON(out, r); err != nil {
					return err
				}
			} else {
				writeVerdict(out, r)
			}
			if !r.Good() {
				return errQuiet
			}
			return nil
		},
	}
	f := c.Flags()
	deviceFlag(c, &cfg.Devices)
	f.StringVar(&cfg.Peer, "peer", "", "the `address` of a host that shall be reached, with a port if not 7174")
	f.BoolVar(&asJSON, "json", false, "for programs")
	f.BoolVarP(&verbose, "verbose", "v", false, "all of what is to be done, not only the first")
	return c
}

func writeCheck(w io.Writer, k doctor.Check, verbose bool) {
	name := k.Name
	if k.Device != "" {
		name += ", " + k.Device
	}
	fmt.Fprintf(w, "%-8s %s: %s\n", k.Status, name, oneLine(k.Detail))
	if verbose && k.Fix != "" {
		fmt.Fprintf(w, "%-8s to do: %s\n", "", oneLine(k.Fix))
	}
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

func writeVerdict(w io.Writer, r *doctor.Report) {
	fmt.Fprintln(w)
	switch {
	case r.HostOnly():
		fmt.Fprintln(w, "RDMA works between processes of this host only: shm")
	case len(r.Works) > 0:
		fmt.Fprintf(w, "RDMA works: %s\n", strings.Join(r.Works, ", "))
	default:
		fmt.Fprintln(w, "RDMA does not work here")
	}
	if r.First != nil {
		fmt.Fprintf(w, "Fix first: %s\n           %s\n", oneLine(r.First.Detail), oneLine(r.First.Fix))
	}
}
