package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/raftlog"
)

// backupCommand makes muster backup. The file gets its name when it is whole: a part of a backup is
// worse than none, because somebody would rely on it.
func backupCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("backup FILE", "Write a server's whole state to a file", `The server keeps running meanwhile; - is stdout. The file appears when it is complete and was read back, and then replaces one of that name. It has the specifications of all jobs, secrets included, but neither output, the history of ended jobs nor the token: protect it as you protect the data directory. muster restore makes a data directory of it.`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// A backup is binary, and has secrets of jobs in it.
		if args[0] == "-" && a.JSON {
			return cli.Usage(errors.New("--json and the backup both want stdout; name a file"))
		}
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
		done, err := writeBackup(args[0], r)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(done)
		}
		fmt.Fprintf(a.Stderr, "muster: %s: %s, state of %s (log index %d)\n", done.File, muster.Bytes(done.Bytes), done.Made.Format(time.RFC3339), done.Index)
		return nil
	})
}

// backedUp is what --json prints. Bytes is the size of the file.
type backedUp struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	raftlog.BackupInfo
}

// writeBackup writes a backup beside its name, reads it back, and gives it its name then.
func writeBackup(name string, r io.Reader) (done backedUp, err error) {
	part := name + ".part"
	n, err := atomicfile.WriteFrom(part, r)
	if err != nil {
		return done, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	f, err := os.Open(part)
	if err != nil {
		return done, err
	}
	defer func() { _ = f.Close() }()
	info, err := raftlog.ReadBackup(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return done, fmt.Errorf("%s was read back and is not what the server sent: %w; check the disk", name, err)
	}
	if err := os.Rename(part, name); err != nil {
		return done, err
	}
	return backedUp{File: name, Bytes: n, BackupInfo: info}, atomicfile.SyncDir(filepath.Dir(name))
}
