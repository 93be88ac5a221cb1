package main

import (
	"github.com/spf13/cobra"
)

// serverCommands are those for who runs a server.
func serverCommands(a *app) []*cobra.Command {
	return []*cobra.Command{a.devCommand(), a.serverCommand(), a.configCommand(), a.backupCommand(), a.restoreCommand()}
}
