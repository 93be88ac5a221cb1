package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// cpCommand makes muster cp. Its rules about what lands where are those of docker cp, which people
// know.
func cpCommand(a *cli.App) *cobra.Command {
	cp := &copier{app: a}
	c := a.Command("cp SRC... DST", "Copy files into and out of a sandbox", `Either the sources or the destination are in the sandbox of a running allocation, written ALLOC:PATH; the others are local. `+cli.TargetHelp+` PATH is absolute, or below the directory where the
allocation's command started. A local name that has a colon is written with ./ before it.

  muster cp web:/var/log/app.log .             a file, under its own name
  muster cp web:/etc/app conf                  a directory, as conf, or into it if it exists
  muster cp web:/etc/app/. conf                what is in it
  muster cp a.txt b.txt web:/srv/              files into an existing directory
  muster cp web:/srv - | tar t                 a tar stream to stdout; from stdin as muster cp - web:/srv

A source keeps its name in a destination that is a directory. If the destination does not exist, it is created, provided that its parent directory exists. A destination that ends with / must be a directory.

Permissions and times are kept; owners only with --archive, else the copy belongs to the sandbox's user, or to you. Symbolic links are copied as links, unless -L is given for a source. Nothing is written outside the copy or through its links; links from a sandbox that lead out of the copy are left out, and so are pipes and sockets: then the exit code is 1. A file gets its name only when it is complete.`, cobra.ArbitraryArgs, func(ctx context.Context, args []string) error {
		return cp.run(ctx, args)
	})
	c.Flags().BoolVarP(&cp.archive, "archive", "a", false, "into a sandbox: keep owners")
	c.Flags().BoolVarP(&cp.follow, "follow-link", "L", false, "follow symbolic links that are given as sources")
	c.Flags().BoolVarP(&cp.quiet, "quiet", "q", false, "show no progress")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// copier is one use of muster cp.
type copier struct {
	// app is where streams are read and written.
	app *cli.App
	// archive keeps owners.
	archive bool
	// follow copies what a source leads to if it is a link.
	follow bool
	// quiet shows no progress.
	quiet bool

	// What follows is set by run: the sandbox that is on one side of the copy, and how far it is.
	cl     *client.Client
	target *cli.Target
	moved  *moved
	// left is how many entries of directories were left out.
	left   int
	copied []copied
}

// copied is what `muster cp --json` prints of one source.
type copied struct {
	Source string `json:"source"`
	To     string `json:"to"`
	Bytes  int64  `json:"bytes"` // with the headers of the archive in which it travelled
}

// place is a source or a destination, as it was written. Errors name it by its text.
type place struct {
	text  string
	alloc string // "" for one here
	path  string
}

// inside reports whether the place is in a sandbox.
func (p place) inside() bool { return p.alloc != "" }

// stream reports whether the place is stdin or stdout, where a tar archive is read or written.
func (p place) stream() bool { return p.alloc == "" && p.path == "-" }

// directory reports whether the place must be a directory, by how it is written.
func (p place) directory() bool { return strings.HasSuffix(p.path, "/") || p.contents() }

// contents reports whether the files in the directory are meant, and not the directory under its
// own name.
func (p place) contents() bool {
	return p.path == "." || p.path == "/" || strings.HasSuffix(p.path, "/.")
}

// parsePlace reads ALLOC:PATH, or a path on this host. A path that begins with / or . is always on
// this host, so a file with a colon in its name can be written as ./a:b.
func parsePlace(s string) (place, error) {
	alloc, in, ok := strings.Cut(s, ":")
	switch {
	case s == "":
		return place{}, cli.Usage(errors.New("a source or destination is empty"))
	// Nothing before the colon can be an allocation then.
	case !ok || s[0] == '/' || s[0] == '.':
		return place{text: s, path: s}, nil
	case alloc == "":
		return place{}, cli.Usage(fmt.Errorf("%s: there is no allocation before the colon; a file here of such a name is ./%s", s, s))
	case in == "":
		return place{}, cli.Usage(fmt.Errorf("%s: there is no path behind the colon; %s. is the directory where its command started", s, s))
	}
	return place{text: s, alloc: alloc, path: in}, nil
}

// run copies all sources. The first that fails ends it: those before it are copied by then.
func (cp *copier) run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return cli.Usage(errors.New("what should be copied where? write SRC DST, one of them as ALLOC:PATH, as in `muster cp web:/etc/hosts .`"))
	}
	var all []place
	for _, s := range args {
		p, err := parsePlace(s)
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	// One side is in a sandbox and the other one is here. Two sandboxes are refused: it would be
	// two copies, and a stream between two commands shows that.
	sources, dst := all[:len(all)-1], all[len(all)-1]
	if err := sides(sources, dst); err != nil {
		return err
	}
	// All sources are of one sandbox here, so the first names it.
	name := dst.alloc
	if !dst.inside() {
		name = sources[0].alloc
	}
	var err error
	if cp.cl, cp.target, err = cp.app.FindRunning(ctx, name); err != nil {
		return err
	}
	screen := term.NewScreen(cp.app.Stdout, cp.app.Stderr)
	cp.moved = &moved{screen: screen}
	// The bar is drawn beside the copy, and is gone before anything else is printed.
	if !cp.quiet {
		stop := cp.moved.show(ctx)
		defer stop()
	}
	for _, s := range sources {
		cp.moved.begin(s.text, 0)
		if dst.inside() {
			err = cp.into(ctx, s, dst, len(sources) > 1)
		} else {
			err = cp.out(ctx, s, dst, len(sources) > 1)
		}
		if err != nil {
			// The sandbox may have ended in the middle, which says more than the error.
			return cp.target.Explain(ctx, cp.cl, err)
		}
		cp.copied = append(cp.copied, copied{s.text, dst.text, cp.moved.bytes()})
	}
	// With a stream, stdout has the archive.
	if cp.app.JSON && !dst.stream() {
		if err := cp.app.PrintJSON(cp.copied); err != nil {
			return err
		}
	}
	return incomplete(cp.left)
}

// sides refuses sources and a destination that do not go together: one side of a copy is in one
// sandbox, and the other one is here.
func sides(sources []place, dst place) error {
	for _, s := range sources {
		switch {
		case s.inside() == dst.inside() && dst.inside():
			return cli.Usage(fmt.Errorf("both %s and %s are in sandboxes; copy through a stream: `muster cp %s - | muster cp - %s`", s.text, dst.text, s.text, dst.text))
		case s.inside() == dst.inside():
			return cli.Usage(fmt.Errorf("both %s and %s are here; write the one in a sandbox as ALLOC:PATH", s.text, dst.text))
		case s.inside() && s.alloc != sources[0].alloc:
			return cli.Usage(fmt.Errorf("%s and %s are in different sandboxes; copy from one at a time", sources[0].text, s.text))
		case (s.stream() || dst.stream()) && len(sources) > 1:
			return cli.Usage(errors.New("- is one tar stream: there is one source with it"))
		}
	}
	return nil
}

// landing is where a source is put: under a name in a folder.
type landing struct {
	folder string
	name   string // "": the contents
}

// land applies the rules of cp. It is told whether the source is a directory, whether there is
// something at the destination, whether that is a directory, and whether there are several sources.
// Base is the source's own name, which it keeps in a directory that is there. An error names both
// sides as the user wrote them.
func land(s, dst place, base string, source, exists, isDir, many bool) (landing, error) {
	// Names in a sandbox have slashes, whatever system this host has.
	split := func(p string) (string, string) { return path.Dir(p), path.Base(p) }
	if !dst.inside() {
		split = func(p string) (string, string) { return filepath.Dir(p), filepath.Base(p) }
	}
	clean := strings.TrimRight(strings.TrimSuffix(dst.path, "/."), "/")
	if clean == "" {
		clean = "/"
	}
	switch {
	// What is in a directory goes into a directory that is there.
	case exists && isDir && source && s.contents():
		return landing{clean, ""}, nil
	// Otherwise the source keeps its name in it.
	case exists && isDir:
		return landing{clean, base}, nil
	case many:
		return landing{}, fmt.Errorf("%s is not a directory; several sources need one that is there", dst.text)
	// From here on there is no directory at the destination. One cannot take the place of a file.
	case exists && source:
		return landing{}, fmt.Errorf("%s is not a directory, and %s is one", dst.text, s.text)
	case exists && dst.directory():
		return landing{}, fmt.Errorf("%s is not a directory", dst.text)
	// A / at the end says that it must be a directory, and a file is none.
	case !exists && dst.directory() && !source:
		return landing{}, fmt.Errorf("there is no directory %s; make it first, or leave / off its end for a file of that name", dst.text)
	}
	folder, name := split(clean)
	return landing{folder, name}, nil
}

// out copies from the sandbox to this host.
func (cp *copier) out(ctx context.Context, s, dst place, many bool) error {
	// A stream is what the server sends. Whoever unpacks it has to be careful by themselves.
	if dst.stream() {
		if term.IsTerminal(cp.app.Stdout) {
			return cli.Usage(errors.New("a tar stream is nothing for a terminal; redirect it: > FILE, or | tar t"))
		}
		r, err := cp.cl.ReadArchive(ctx, cp.target.ID, s.path, s.contents())
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		_, err = io.Copy(cp.app.Stdout, cp.moved.reader(r))
		return err
	}
	// A / behind a link means what it leads to, as in a shell.
	follow := cp.follow || s.directory()
	entry, err := cp.cl.StatFile(ctx, cp.target.ID, s.path, follow)
	if err != nil {
		return err
	}
	// The destination's link is followed: the user has written its name, and nobody else chose
	// where it leads.
	info, err := os.Stat(dst.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	isDir := entry.Type == api.FileDirectory
	base := path.Base(path.Clean(s.path))
	// Such a path has no name of its own. The server knows the real one; if that has none either,
	// what is in it is copied.
	if base == "." || base == ".." || base == "/" {
		// Its own name, or none: then what is in it is copied.
		if base = path.Base(path.Clean(entry.Path)); base == "." || base == ".." || base == "/" {
			base = ""
		}
	}
	to, err := land(s, dst, base, isDir, err == nil, err == nil && info.IsDir(), many)
	if err != nil {
		return cli.Failure(err)
	}
	// A link that is followed and a directory that gets another name are sent without their own
	// name: the archive would have the old one.
	contents := isDir && (to.name == "" || follow || s.contents())
	if contents && to.name != "" {
		// The name is the destination's alone, so the archive need not have one.
		if err := makeFolder(filepath.Join(to.folder, to.name), dst); err != nil {
			return err
		}
		to = landing{filepath.Join(to.folder, to.name), ""}
	}
	// From here on nothing is opened by its path: the root keeps all of it below the folder.
	root, err := os.OpenRoot(to.folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	u := &untar{root: root, top: to.name}
	// An archive of a link has the link. Its file is read by itself.
	if cp.follow && entry.Type == api.FileRegular {
		return cp.content(ctx, s, entry, u, to.name)
	}
	if !contents {
		// The archive has the source's own name at the top; here it gets the one that was chosen.
		u.rename = func(name string) string {
			_, rest, ok := strings.Cut(name, "/")
			if !ok {
				return to.name
			}
			return to.name + "/" + rest
		}
	}
	r, err := cp.cl.ReadArchive(ctx, cp.target.ID, s.path, contents)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return cp.unpack(s, u, cp.moved.reader(r), entry)
}

// makeFolder makes the directory of a copy. A directory that is there is used. A link to one is
// used only if the user has written its name: an earlier copy may have left it, and then the
// sandbox chose where it leads.
func makeFolder(folder string, dst place) error {
	// Mkdir makes one directory: the one above must be there, as the help text says.
	err := os.Mkdir(folder, 0o755)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, err := os.Lstat(folder); err != nil || info.IsDir() || filepath.Clean(dst.path) == folder {
		return err
	}
	return cli.Failure(fmt.Errorf("%s exists and is not a directory (nothing is written through links); remove it, or copy to another place", folder))
}

// content copies a regular file that a link leads to. An archive would hold the link.
func (cp *copier) content(ctx context.Context, s place, entry *api.FileEntry, u *untar, name string) error {
	r, err := cp.cl.ReadFile(ctx, cp.target.ID, s.path, 0)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	if err := u.file(cp.moved.reader(r), name, modeOf(entry).Perm(), entry.Modified); err != nil {
		return fmt.Errorf("%s: %w", s.text, err)
	}
	return nil
}

// unpack unpacks an archive and says what was left out. That nothing of a link or a special file
// was copied is an error; of a directory, the rest is worth having.
func (cp *copier) unpack(s place, u *untar, r io.Reader, entry *api.FileEntry) error {
	err := u.unpack(r)
	if err == nil {
		// The archive's own end is not the stream's: one that is cut after it is still cut.
		_, err = io.Copy(io.Discard, r)
	}
	// What was left out is said also after an error: it may be why.
	for _, text := range u.skipped {
		cp.moved.screen.Say("%s: %s", s.text, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.text, err)
	}
	if u.files == 0 && len(u.skipped) > 0 && entry.Type != api.FileDirectory {
		if entry.Type == api.FileSymlink {
			return cli.Failure(fmt.Errorf("%s was not copied; -L copies what it leads to", s.text))
		}
		return cli.Failure(fmt.Errorf("%s was not copied", s.text))
	}
	cp.left += u.left
	return nil
}

// incomplete is the error of a copy without some entries of a directory; nil if there are none. A
// script must not take such a copy for a whole one.
func incomplete(left int) error {
	if left == 0 {
		return nil
	}
	return cli.Failure(fmt.Errorf("the copy is not complete: left out of it: %d", left))
}

// into copies from this host into the sandbox. The archive is made while it is sent, so it needs no
// place of its own. What is wrong with a file here ends what is sent, and is the error to report:
// the server knows only that the archive broke off.
func (cp *copier) into(ctx context.Context, s, dst place, many bool) error {
	w := client.ArchiveWrite{Path: dst.path, KeepOwners: cp.archive}
	if s.stream() {
		if term.TerminalOf(cp.app.Stdin) != nil {
			return cli.Usage(errors.New("- is a tar stream on stdin, and stdin is a terminal"))
		}
		return cp.cl.WriteArchive(ctx, cp.target.ID, w, cp.moved.reader(cp.app.Stdin))
	}
	// A source that is a link is copied as one, unless the user wants what it leads to.
	look := os.Lstat
	if cp.follow || s.directory() {
		look = os.Stat
	}
	info, err := look(s.path)
	if err != nil {
		return err
	}
	// What lands where depends on what is there already.
	entry, err := cp.cl.StatFile(ctx, cp.target.ID, dst.path, true)
	if err != nil && client.Code(err) != string(muster.FaultNotFound) {
		return err
	}
	exists := err == nil
	base := filepath.Base(s.path)
	// Such a path has no name of its own, so the directory's real one is taken.
	if base == "." || base == ".." || base == "/" {
		if abs, err := filepath.Abs(s.path); err == nil {
			base = filepath.Base(abs)
		}
	}
	to, err := land(s, dst, base, info.IsDir(), exists, exists && entry.Type == api.FileDirectory, many)
	if err != nil {
		return cli.Failure(err)
	}
	w.Path = to.folder
	p := &packer{root: s.path, follow: cp.follow || s.directory(), name: to.name, owners: cp.archive}
	r, out := io.Pipe()
	// The archive is made and sent at the same time. The pipe between them ends both.
	packed := make(chan error, 1)
	go func() {
		err := p.pack(out)
		packed <- err
		_ = out.CloseWithError(err)
	}()
	err = cp.cl.WriteArchive(ctx, cp.target.ID, w, cp.moved.reader(r))
	_ = r.CloseWithError(errPackStopped)
	if e := <-packed; e != nil && !errors.Is(e, errPackStopped) && ctx.Err() == nil {
		err = cli.Failure(e) // what is wrong here broke off what was sent
	}
	for _, text := range p.skipped {
		cp.moved.screen.Say("%s", text)
	}
	cp.left += p.left
	return err
}

// errPackStopped ends the making of an archive that nobody takes any more. The error of the other
// side is the one to report.
var errPackStopped = errors.New("the other side has stopped")

// modeOf returns the permission bits of an entry, with setuid, setgid and the sticky bit as Go
// writes them. The server sends them as octal digits.
func modeOf(e *api.FileEntry) fs.FileMode {
	var bits uint32
	// A mode that cannot be read has no permissions, which is safe.
	_, _ = fmt.Sscanf(e.Mode, "%o", &bits)
	mode := fs.FileMode(bits & 0o777)
	for _, b := range []struct {
		bit  uint32
		mode fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if bits&b.bit != 0 {
			mode |= b.mode
		}
	}
	return mode
}
