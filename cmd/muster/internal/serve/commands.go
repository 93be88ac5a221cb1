package serve

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/blob"
)

// Commands are those for whoever runs a server. They are a group of their own in the help text,
// because most people who use a cluster never need them. open opens buckets; it is nil in a program
// that has no drivers of them.
func Commands(a *cli.App, open blob.Opener) []*cobra.Command {
	return []*cobra.Command{devCommand(a, open), serverCommand(a, open), configCommand(a), backupCommand(a), restoreCommand(a)}
}
