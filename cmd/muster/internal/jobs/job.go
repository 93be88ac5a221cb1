package jobs

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
)

// jobCommand makes muster job, with all that is below it. Outputs are fetched by package transfer,
// whose command is one of them.
func jobCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "job", Short: "Submit, show and stop jobs",
		Long: term.Reflow(`Submit, show and stop jobs.

Jobs are named NAME in the namespace default, and NAMESPACE/NAME, or NAME with
--namespace, in others.`),
		Args: cobra.NoArgs, RunE: cli.NeedsCommand,
	}
	c.AddCommand(submitCommand(a), validateCommand(a), jobListCommand(a), jobShowCommand(a), logsCommand(a), transfer.FetchCommand(a),
		scaleCommand(a), revertCommand(a), historyCommand(a), stopCommand(a), retryCommand(a), waitCommand(a))
	return c
}
