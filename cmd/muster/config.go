package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/specfile"
)

func (a *app) configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check a server's configuration", Long: "Check a server's configuration.", Args: cobra.NoArgs, RunE: needsCommand}
	file := ""
	check := a.command("check -c FILE", "Check a server's configuration", `The file is read as by muster server. With --json it is printed with all defaults.
Exit code 0: it is right; 2: it is wrong.`, cobra.NoArgs, func(context.Context, []string) error {
		if file == "" {
			return usage(errors.New("which file? give it with -c"))
		}
		config, err := specfile.ConfigAt(file)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(config)
		}
		_, err = fmt.Fprintf(a.stdout, "%s is right: %d providers, %d pools, listening on %s\n", file, len(config.Providers), len(config.Pools), config.Listen)
		return err
	})
	check.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	c.AddCommand(check)
	return c
}
