package serve

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/atomicfile"
)

// backupCommand makes muster backup. The file gets its name when it is whole: a part of a backup is
// worse than none, because somebody would rely on it.
func backupCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("backup FILE", "Write a server's whole state to a file", `The server keeps running meanwhile; - is stdout. The file appears when it is complete, and then replaces one of that name. It has the specifications of all jobs, secrets included, but neither output, the history of ended jobs nor the token: protect it as you protect the data directory. muster restore makes a data directory of it.`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// A backup is binary, and has secrets of jobs in it.
		if args[0] == "-" && term.IsTerminal(a.Stdout) {
			return cli.Usage(errors.New("a backup is not for a terminal; name a file, or redirect stdout"))
		}
		// The server goes on meanwhile: what is read is its state at one moment.
		r, err := cl.Backup(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if args[0] == "-" {
			_, err = io.Copy(a.Stdout, r)
			return err
		}
		n, err := atomicfile.WriteFrom(args[0], r)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Stderr, "muster: %s: %s\n", args[0], muster.Bytes(n))
		return nil
	})
}
