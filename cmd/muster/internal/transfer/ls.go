package transfer

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// lsCommand makes muster ls.
func lsCommand(a *cli.App) *cobra.Command {
	var long, recursive bool
	c := a.Command("ls ALLOC[:PATH]", "List files in a sandbox", `List what is in a directory of a running allocation's sandbox, or a file. `+cli.TargetHelp+`
PATH is absolute, or below the directory where the allocation's command started, which is listed if it is left out.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		name, dir, ok := strings.Cut(args[0], ":")
		if name == "" {
			return cli.ErrNoAlloc("muster ls JOB:/tmp")
		}
		// The directory where the command started is what people look for most.
		if !ok || dir == "" {
			dir = "."
		}
		cl, t, err := a.FindRunning(ctx, name)
		if err != nil {
			return err
		}
		list, err := cl.ListFiles(ctx, t.ID, dir, recursive, api.FileMaxList)
		if err != nil {
			return t.Explain(ctx, cl, err)
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		printFiles(a, list.Entries, dir, long, recursive)
		// The server bounds the list, so that a tree of millions does not take its memory.
		if list.More {
			fmt.Fprintf(a.Stderr, "muster: there are more than %d; name a directory below %s\n", len(list.Entries), term.Clean(dir))
		}
		return nil
	})
	c.Flags().BoolVarP(&long, "long", "l", false, "with permissions, owner, size and time")
	c.Flags().BoolVarP(&recursive, "recursive", "R", false, "list subdirectories recursively")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// printFiles prints entries in the order of their names, or of their paths if they are of a tree.
// Columns are as wide as their longest cell, so long lists stay readable without a terminal.
func printFiles(a *cli.App, entries []api.FileEntry, dir string, long, recursive bool) {
	// In a tree a name alone does not say where the file is.
	called := func(e *api.FileEntry) string {
		if recursive && e.Path != "" {
			return strings.TrimPrefix(e.Path, strings.TrimSuffix(dir, "/")+"/")
		}
		return e.Name
	}
	slices.SortFunc(entries, func(x, y api.FileEntry) int { return strings.Compare(called(&x), called(&y)) })
	var b strings.Builder
	rows := make([][]string, len(entries))
	var widths [4]int
	now := time.Now()
	for i := range entries {
		e := &entries[i]
		name := called(e)
		// The target is text from the sandbox as well, and is cleaned with the name.
		if long && e.Target != "" {
			name += " -> " + e.Target
		}
		rows[i] = []string{modeText(e), ownerText(e.User, e.UID), ownerText(e.Group, e.GID), fmt.Sprint(e.Size), timeText(e.Modified, now), term.OneLine(name)}
		for c := range widths {
			widths[c] = max(widths[c], len(rows[i][c]))
		}
	}
	for _, r := range rows {
		if long {
			fmt.Fprintf(&b, "%s %-*s %-*s %*s %s ", r[0], widths[1], r[1], widths[2], r[2], widths[3], r[3], r[4])
		}
		b.WriteString(r[5] + "\n")
	}
	_, _ = io.WriteString(a.Stdout, b.String())
}

// modeText is an entry's kind and permissions, as ls shows them: setuid, setgid and the sticky bit
// take the place of an x.
func modeText(e *api.FileEntry) string {
	kind := map[string]string{
		api.FileRegular: "-", api.FileDirectory: "d", api.FileSymlink: "l", api.FileFIFO: "p", api.FileSocket: "s", api.FileBlock: "b", api.FileChar: "c",
	}[e.Type]
	if kind == "" {
		kind = "?"
	}
	mode := modeOf(e)
	bits := []byte(mode.Perm().String()[1:])
	for _, special := range []struct {
		set   bool
		at    int
		x, no byte
	}{{mode&fs.ModeSetuid != 0, 2, 's', 'S'}, {mode&fs.ModeSetgid != 0, 5, 's', 'S'}, {mode&fs.ModeSticky != 0, 8, 't', 'T'}} {
		if !special.set {
			continue
		}
		if bits[special.at] == 'x' {
			bits[special.at] = special.x
		} else {
			bits[special.at] = special.no
		}
	}
	return kind + string(bits)
}

// ownerText is the name of an owner, or the id if the sandbox knows no name for it.
func ownerText(name string, id int) string {
	if name != "" {
		return term.OneLine(name)
	}
	return fmt.Sprint(id)
}

// timeText is a moment, with its hour if it is not long ago. Both forms are equally wide.
func timeText(t, now time.Time) string {
	if d := now.Sub(t); d > 180*24*time.Hour || d < -24*time.Hour {
		return t.Local().Format("2006-01-02      ") // as wide
	}
	return t.Local().Format("2006-01-02 15:04")
}
