package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	return a.command("version", "Print the version", "", cobra.NoArgs, func(context.Context, []string) error {
		if a.json {
			return a.printJSON(map[string]string{"version": version.String(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH})
		}
		_, err := fmt.Fprintf(a.stdout, "muster %s %s %s/%s\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	})
}
