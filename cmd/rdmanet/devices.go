package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-rdma/rdma/rdmanet"
)

func devicesCommand() *cobra.Command {
	var asJSON, verbose bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "List the RDMA devices of this host",
		Long: `devices lists every RDMA device with its provider, limits and ports, and for each that cannot be used the reason.
A device of provider "rdmacore" is one of the kernel's, reached through libibverbs; "softroce" is the embedded one, which serves
every address of the host; "shm" is memory that processes of the host share.`,
		Example: `  rdmanet devices
  rdmanet devices --json | jq -r '.[] | select(.unusable == null) | .name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			devs, err := rdmanet.Devices()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), jsonDevices(devs))
			}
			writeDevices(c.OutOrStdout(), devs, verbose)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "for programs")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "all addresses of a port, however many")
	return c
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// jsonDevice is a device for programs.
type jsonDevice struct {
	Name              string     `json:"name"`
	Provider          string     `json:"provider"`
	Unusable          *string    `json:"unusable"` // why, or null
	MaxQP             int        `json:"max_qp"`
	MaxCQE            int        `json:"max_cqe"`
	MaxMsgSize        int        `json:"max_msg_size"`
	ODP               bool       `json:"odp"`
	NativeFlush       bool       `json:"native_flush"`
	NativeAtomicWrite bool       `json:"native_atomic_write"`
	Ports             []jsonPort `json:"ports"`
}

type jsonPort struct {
	Num       int          `json:"num"`
	State     string       `json:"state"`
	MTU       int          `json:"mtu"`
	Interface string       `json:"interface"` // empty: all
	GIDs      []netip.Addr `json:"gids"`
}

func jsonDevices(devs []rdmanet.Device) []jsonDevice {
	all := []jsonDevice{}
	for _, d := range devs {
		j := jsonDevice{
			Name: d.Name, Provider: d.Provider, MaxQP: d.MaxQP, MaxCQE: d.MaxCQE, MaxMsgSize: d.MaxMsgSize,
			ODP: d.ODP, NativeFlush: d.NativeFlush, NativeAtomicWrite: d.NativeAtomicWrite, Ports: []jsonPort{},
		}
		if d.Unusable != nil {
			why := d.Unusable.Error()
			j.Unusable = &why
		}
		for _, p := range d.Ports {
			j.Ports = append(j.Ports, jsonPort{p.Num, p.State, p.MTU, p.Interface, append([]netip.Addr{}, p.GIDs...)})
		}
		all = append(all, j)
	}
	return all
}

// someGIDs is how many addresses of a port are shown to who has not asked for all.
const someGIDs = 8

func writeDevices(w io.Writer, devs []rdmanet.Device, verbose bool) {
	if len(devs) == 0 {
		fmt.Fprintln(w, "no devices: this program runs on Linux only")
		return
	}
	for i, d := range devs {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s (%s)\n", d.Name, d.Provider)
		if d.Unusable != nil {
			fmt.Fprintf(w, "  unusable: %v\n", d.Unusable)
		}
		if d.MaxQP > 0 {
			fmt.Fprintf(w, "  limits:   %d queue pairs, %d completions in a queue, messages of %s\n", d.MaxQP, d.MaxCQE, bytesText(int64(d.MaxMsgSize)))
			fmt.Fprintf(w, "  does:     FLUSH %s, ATOMIC WRITE %s, on-demand paging %s\n",
				native(d.NativeFlush), native(d.NativeAtomicWrite), yesNo(d.ODP))
		}
		for _, p := range d.Ports {
			on := "all interfaces"
			if p.Interface != "" {
				on = "interface " + p.Interface
			}
			fmt.Fprintf(w, "  port %d:   %s, %s", p.Num, p.State, on)
			if p.MTU > 0 {
				fmt.Fprintf(w, ", MTU %d", p.MTU)
			}
			fmt.Fprintln(w)
			writeGIDs(w, p.GIDs, verbose)
		}
	}
}

func writeGIDs(w io.Writer, gids []netip.Addr, verbose bool) {
	if len(gids) == 0 {
		return
	}
	rest := 0
	if !verbose && len(gids) > someGIDs {
		gids, rest = gids[:someGIDs], len(gids)-someGIDs
	}
	words := make([]string, len(gids))
	for i, g := range gids {
		words[i] = g.String()
	}
	fmt.Fprintf(w, "  addresses: %s", strings.Join(words, ", "))
	if rest > 0 {
		fmt.Fprintf(w, " and %d more (-v)", rest)
	}
	fmt.Fprintln(w)
}

func native(has bool) string {
	if has {
		return "native"
	}
	return "emulated"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// bytesText is a size in the largest binary unit that it has one of.
func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n), -1
	for x >= 1<<10 && unit < len(units)-1 {
		x /= 1 << 10
		unit++
	}
	if x == math.Trunc(x) || x >= 100 {
		return fmt.Sprintf("%.0f %ciB", x, units[unit])
	}
	return fmt.Sprintf("%.1f %ciB", x, units[unit])
}
