package inside

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those that reach into running sandboxes.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{execCommand(a), portCommand(a), topCommand(a)}
}
