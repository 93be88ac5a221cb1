package operators

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// Commands are those for whoever operates a cluster. Who may use which is the server's to say: here
// all are shown to everybody.
func Commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{explainCommand(a), nodeCommand(a), poolCommand(a), offeringCommand(a), namespaceCommand(a), providerCommand(a), imageCommand(a), costCommand(a), eventsCommand(a), serversCommand(a)}
}
