package jobs

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
)

func jobCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "job", Short: "Submit, see and stop jobs",
		Long: term.Reflow(`Submit, see and stop jobs.

Jobs are named NAME in the namespace default, and NAMESPACE/NAME, or NAME with
--namespace, in others.`),
		Args: cobra.NoArgs, RunE: cli.NeedsCommand,
	}
	c.AddCommand(submitCommand(a), validateCommand(a), jobListCommand(a), jobShowCommand(a), logsCommand(a), transfer.FetchCommand(a),
		scaleCommand(a), revertCommand(a), historyCommand(a), stopCommand(a))
	return c
}

// Commands are those that run jobs and show them.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{runCommand(a), jobCommand(a)}
}
