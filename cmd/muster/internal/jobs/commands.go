package jobs

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those that run jobs and show them.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{runCommand(a), jobCommand(a), endedJobsCommand(a)}
}
