package main

import "github.com/spf13/cobra"

// serverCommands are those for who runs a server.
func (a *app) serverCommands() []*cobra.Command {
	return []*cobra.Command{a.devCommand(), a.serverCommand(), a.configCommand(), a.backupCommand(), a.restoreCommand()}
}
