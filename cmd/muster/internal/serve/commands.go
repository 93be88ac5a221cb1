package serve

import (
	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/registry"
)

// Drivers are what a program has beyond its own code. A lean program has none.
type Drivers struct {
	// Bucket opens the bucket that keeps blobs; Cloud makes the provider of a cloud. Both may be nil.
	Bucket blob.Opener
	Cloud  cloud.Opener
	// Identity makes the identity of a registry's entry in the configuration; it may be nil.
	Identity registry.Opener
}

// Commands are those for whoever runs a server. They are a group of their own in the help text,
// because most people who use a cluster never need them.
func Commands(a *cli.App, d Drivers) []*cobra.Command {
	return []*cobra.Command{devCommand(a, d), serverCommand(a, d), configCommand(a), backupCommand(a), restoreCommand(a)}
}
