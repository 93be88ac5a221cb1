// Command muster-node is the agent on a node: one static program without
// configuration files. The server starts it, or link over SSH.
//
// It must never know a cloud, open a port, or end a sandbox because it ends itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/agent"
	"github.com/musterhq/muster/internal/agent/host"
	"github.com/musterhq/muster/internal/remote/bridge"
	"github.com/musterhq/muster/internal/version"
)

func main() {
	// SIGHUP is of a terminal or a connection that goes; the agent stays. It is taken and dropped and not
	// ignored: what is ignored stays so in all that is started from here, down to the command of a job.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil && !errors.Is(err, agent.ErrReplaced) {
		if exit := exitError(0); errors.As(err, &exit) {
			os.Exit(int(exit)) // the process that it is of has said why
		}
		fmt.Fprintln(os.Stderr, "muster-node:", err)
		var dial *dialError
		if errors.As(err, &dial) {
			os.Exit(bridge.Exit(err))
		}
		var on *hostError
		if errors.As(err, &on) {
			os.Exit(host.Exit(err))
		}
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "muster-node",
		Short:         "The agent of a Muster node",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(agentCommand(), dialCommand(), devicesCommand(), imagesCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	})
	cmd.AddCommand(hostCommands()...)
	cmd.AddCommand(endCommand(), holdCommand(), networksCommand())
	return cmd
}
