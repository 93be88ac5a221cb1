package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/host"
)

// hostError ends the program with a status that the server's side understands.
type hostError struct{ err error }

func (e *hostError) Error() string { return e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

// maxNetwork bounds network settings, in bytes: a bundle of certificates is a few hundred KiB.
const maxNetwork = 4 << 20

// hostCommands are those that the server runs over SSH.
func hostCommands() []*cobra.Command {
	var base, node, cluster string
	var network bool
	flags := func(c *cobra.Command) {
		c.Flags().StringVar(&base, "base", "/var/lib/muster", "directory of Muster on this host")
		c.Flags().StringVar(&node, "node", "", "id of the node (required)")
		if err := c.MarkFlagRequired("node"); err != nil {
			panic(err)
		}
	}
	// here is this host; the program that is started is this one, under whatever name it was put here.
	here := func() (host.Host, error) {
		self, err := os.Executable()
		return host.Host{Base: base, Program: self}, err
	}
	start := &cobra.Command{
		Use:   "start [-- AGENT-FLAG…]",
		Short: "Start the agent of a node on this host, detached, if it does not run",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := here()
			if err != nil {
				return err
			}
			var settings []byte
			if network {
				if settings, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxNetwork)); err != nil {
					return &hostError{fmt.Errorf("start node %s: network settings: %w", node, err)}
				}
			}
			if err := h.Start(cmd.Context(), host.Start{Node: muster.NodeID(node), Cluster: cluster, Args: args, Network: settings}); err != nil {
				return &hostError{fmt.Errorf("start node %s: %w", node, err)}
			}
			return nil
		},
	}
	flags(start)
	start.Flags().BoolVar(&network, "network", false, "read the network settings of the agent from standard input")
	start.Flags().StringVar(&cluster, "cluster", "", "cluster that the node belongs to")
	end := &cobra.Command{
		Use:   "clear",
		Short: "End the agent of a node and all that runs on it, and delete what they left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := here()
			if err != nil {
				return err
			}
			if err := h.Clear(cmd.Context(), muster.NodeID(node)); err != nil {
				return &hostError{fmt.Errorf("clear node %s: %w", node, err)}
			}
			return nil
		},
	}
	flags(end)
	return []*cobra.Command{start, end}
}
