package serve

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those for whoever runs a server. They are a group of their own in the help text,
// because most people who use a cluster never need them.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{devCommand(a), serverCommand(a), configCommand(a), backupCommand(a), restoreCommand(a)}
}
