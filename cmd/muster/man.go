package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// manCommand makes muster man, which packages are built with. It is in no help text.
func manCommand(a *cli.App) *cobra.Command {
	c := a.Command("man DIR", "Write a man page of each command", "DIR must exist.", cobra.ExactArgs(1), func(_ context.Context, args []string) error {
		// A tree of its own: the pages must not show what this call was given.
		root := assemble(&cli.App{})
		root.DisableAutoGenTag = true
		header := &doc.GenManHeader{Section: "1", Source: "muster", Manual: "Muster"}
		// One commit makes one page. cobra takes the time of the build from SOURCE_DATE_EPOCH, as
		// reproducible builds have it.
		return doc.GenManTree(root, header, args[0])
	})
	c.Hidden = true
	return c
}
