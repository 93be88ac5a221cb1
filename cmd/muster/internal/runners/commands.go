package runners

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those about environments and their runners.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{envCommand(a), claimCommand(a), releaseCommand(a), extendCommand(a), runnerCommand(a), xCommand(a)}
}
