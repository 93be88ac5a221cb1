package transfer

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those that move files and list them. FetchCommand is not among them: it is a part of
// muster job.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{cpCommand(a), lsCommand(a)}
}
