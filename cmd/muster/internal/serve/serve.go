package serve

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those for who runs a server.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{devCommand(a), serverCommand(a), configCommand(a), backupCommand(a), restoreCommand(a)}
}
