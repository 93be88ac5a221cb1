package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/version"
)

// versionCommand makes muster version. It asks no server.
func versionCommand(a *cli.App) *cobra.Command {
	return a.Command("version", "Print the version", "", cobra.NoArgs, func(context.Context, []string) error {
		if a.JSON {
			return a.PrintJSON(map[string]string{"version": version.String(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
		}
		_, err := fmt.Fprintf(a.Stdout, "muster %s %s %s/%s\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	})
}
