package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
)

func (a *app) backupCommand() *cobra.Command {
	return a.command("backup FILE", "Write a server's whole state to a file", `The server goes on while it is written; - is stdout. The file appears when it is whole;
one of that name is replaced then. It holds all that jobs were given, but neither
output nor the token: keep it as safe as the data directory, and make a data directory of it with
muster restore.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		cl, err := a.connect()
		if err != nil {
			return err
		}
		if args[0] == "-" && isTerminal(a.stdout) {
			return usage(errors.New("a backup is not for a terminal; name a file, or redirect stdout"))
		}
		r, err := cl.Backup(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if args[0] == "-" {
			_, err = io.Copy(a.stdout, r)
			return err
		}
		n, err := writeWhole(args[0], r)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stderr, "muster: %s: %s\n", args[0], muster.Bytes(n))
		return nil
	})
}

// writeWhole writes a file that is there whole, on disk, or not at all.
func writeWhole(path string, r io.Reader) (int64, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	n, err := io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return n, err
}
