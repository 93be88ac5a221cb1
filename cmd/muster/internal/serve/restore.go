package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/server"
)

// restoreCommand makes muster restore. It needs no server: it makes the data directory on which one
// is started then. A directory that has state is refused by the server's own code, so that a
// mistyped name costs nothing.
func restoreCommand(a *cli.App) *cobra.Command {
	return a.Command("restore FILE --data-dir DIR", "Make a data directory of a backup", `The directory must have no state yet. A server that is started on it continues from the backup in a new epoch: nodes that obeyed the old server obey it, and it stops nothing only because the backup does not know it. Output is not in a backup: it stays in the blob store; with the default one, copy blobs/ of the old directory.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		// The environment does not count here: a directory is made, so it must be named.
		if a.Given.DataDir == "" {
			return cli.Usage(errors.New("where to? give the new data directory with --data-dir"))
		}
		info, err := server.Restore(ctx, args[0], a.Given.DataDir)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(info)
		}
		_, err = fmt.Fprintf(a.Stdout, "%s: state of %s (log index %d); start a server on it\n", a.Given.DataDir, info.Made.Format("2006-01-02 15:04:05Z07:00"), info.Index)
		return err
	})
}
