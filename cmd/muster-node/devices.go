package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/agent/devices"
)

// devicesCommand says what an agent would find on this host. Operators write their configuration by it.
func devicesCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "devices",
		Short: "Print the devices of this host that containers can be given",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found := devices.Find("/")
			for _, p := range found.Problems {
				fmt.Fprintln(cmd.ErrOrStderr(), "muster-node:", p)
			}
			if asJSON {
				type device struct {
					Kind   string `json:"kind"`
					Name   string `json:"name"`
					Model  string `json:"model,omitempty"`
					Driver string `json:"driver,omitempty"`
					UUID   string `json:"uuid,omitempty"`
				}
				list := []device{}
				for _, d := range found.Devices {
					list = append(list, device{d.Kind, d.Name, d.Model, d.Driver, d.UUID})
				}
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"devices": list})
			}
			if len(found.Devices) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "muster-node: no devices: there is nothing in /etc/cdi and /var/run/cdi, and no driver of NVIDIA's")
				return nil
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "KIND\tNAME\tMODEL\tDRIVER\tUUID")
			for _, d := range found.Devices {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.Kind, d.Name, cmp.Or(d.Model, "-"), cmp.Or(d.Driver, "-"), cmp.Or(d.UUID, "-"))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
