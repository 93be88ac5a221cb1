package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// fetched is what `muster job fetch --json` prints of one declared output.
type fetched struct {
	Member int    `json:"member"`
	Path   string `json:"path"`
	Folder string `json:"folder"`
	Files  int    `json:"files"`
}

// FetchCommand makes muster job fetch. It is here because outputs are unpacked by the same rules as
// copies: the members that left them are no more trusted than a sandbox.
func FetchCommand(a *cli.App) *cobra.Command {
	dest, index := ".", -1
	c := a.Command("fetch NAME", "Copy the outputs of a job's members", `The outputs that a job file declares are kept when a member has succeeded. They are copied into the folder of --dest; for a job with several members, into one folder each, named by the index. Existing files are replaced. Nothing is written outside an output's own path, nor through symbolic links; links that lead out of it are left out. On a terminal, stderr shows how far the copy is.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		key, cl, job, err := a.Job(ctx, args[0])
		if err != nil {
			return err
		}
		// The server would answer with no member at all, which looks like one without outputs.
		if index >= job.Count {
			return cli.Failure(fmt.Errorf("job %s has no member %d: it has %d, counted from 0", key, index, job.Count))
		}
		screen := term.NewScreen(a.Stdout, a.Stderr)
		f := &fetcher{app: a, cl: cl, key: key, dest: dest, one: job.Count == 1 || index >= 0, got: []fetched{}, screen: screen, moved: &moved{screen: screen}}
		return f.run(ctx, job, index)
	})
	c.Flags().StringVar(&dest, "dest", dest, "folder to copy to; created if missing")
	// Habits of other tools; the help names one spelling.
	c.Flags().StringVar(&dest, "to", dest, "the same as --dest")
	_ = c.Flags().MarkHidden("to")
	c.Flags().IntVar(&index, "index", index, "only this member, without a folder of its own")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// fetcher brings the outputs of one job.
type fetcher struct {
	app *cli.App
	cl  *client.Client
	key muster.JobKey
	// dest is the folder for all of them.
	dest string
	// one says that there is no folder for each member below dest.
	one bool
	// screen shows moved, how far the present output is.
	screen *term.Screen
	moved  *moved
	// got is what has arrived.
	got []fetched
	// failed counts members of which something has not arrived.
	failed int
	// left is how many entries of outputs were left out.
	left int
}

// run brings the outputs of all members that have succeeded, or of one. A member whose outputs
// cannot be had does not keep the others from theirs; only a server that is away ends it.
func (f *fetcher) run(ctx context.Context, job *api.Job, index int) error {
	succeeded, err := f.members(ctx, index)
	if err != nil {
		return err
	}
	if f.app.JSON {
		if err := f.app.PrintJSON(f.got); err != nil {
			return err
		}
	}
	// Who fetches all should know that some are missing, without it being an error: they failed,
	// the fetch did not.
	if without := job.Count - succeeded; without > 0 && len(f.got) > 0 && index < 0 {
		fmt.Fprintf(f.app.Stderr, "muster: job %s: no outputs of %d of %s, which did not succeed\n", f.key, without, muster.Counted(job.Count, "member"))
	}
	switch {
	case f.failed > 0:
		return cli.Failure(fmt.Errorf("job %s: the outputs of %s could not be fetched", f.key, muster.Counted(f.failed, "member")))
	case len(f.got) > 0 || f.app.JSON:
		return incomplete(f.left)
	// Nothing arrived and nothing was wrong: the job declares none, or no member has succeeded yet.
	case job.Spec != nil && len(job.Spec.Outputs) == 0:
		return cli.Failure(fmt.Errorf("job %s declares no outputs; what its members printed is shown by `muster job logs %s`", f.key, f.key))
	}
	return cli.Failure(fmt.Errorf("job %s has no outputs to fetch: they are kept when a member has succeeded, and it is %s", f.key, api.JobStatus(job)))
}

// members brings the outputs of members, one after the other, and counts those that have succeeded.
// The bar is gone when it returns: what is printed after it must not meet it.
func (f *fetcher) members(ctx context.Context, index int) (succeeded int, err error) {
	if !f.app.JSON {
		defer f.moved.show(ctx)()
	}
	for m, err := range f.cl.AllMembers(ctx, f.key, client.MemberQuery{Status: muster.MemberSucceeded}) {
		if err != nil {
			return succeeded, err
		}
		// A server of another version may not know the filter.
		if m.Alloc == "" || m.Status != string(muster.MemberSucceeded) || index >= 0 && m.Index != index {
			continue
		}
		succeeded++
		err := f.member(ctx, m)
		if ctx.Err() != nil {
			return succeeded, ctx.Err()
		}
		// The others would fail like this one.
		if client.IsUnreachable(err) {
			return succeeded, err
		}
		if err != nil {
			f.failed++
			f.screen.Say("member %d: %s", m.Index, term.OneLine(err.Error()))
		}
	}
	return succeeded, nil
}

// member brings the outputs of one member. Each is unpacked below its own path only: two outputs
// cannot overwrite each other's files.
func (f *fetcher) member(ctx context.Context, m api.Member) error {
	list, err := f.cl.Outputs(ctx, muster.AllocID(m.Alloc))
	if err != nil || len(list.Files) == 0 {
		return err
	}
	folder := f.dest
	if !f.one {
		folder = filepath.Join(folder, fmt.Sprint(m.Index))
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for n, out := range list.Files {
		// Only the output's own path may be written, wherever it lies in the folder.
		u := &untar{root: root, top: path.Clean(out.Path)}
		// The server has checked it too. What is written to this host is not left to others.
		if !filepath.IsLocal(filepath.FromSlash(u.top)) {
			return fmt.Errorf("output %q leaves the folder", out.Path)
		}
		if u.top == "." {
			u.top = ""
		}
		what := term.OneLine(out.Path)
		if !f.one {
			what = fmt.Sprintf("member %d: %s", m.Index, what)
		}
		f.moved.begin(what, out.Size)
		if err := f.output(ctx, muster.AllocID(m.Alloc), n, u); err != nil {
			return fmt.Errorf("output %s: %w", out.Path, err)
		}
		for _, s := range u.skipped {
			f.screen.Say("member %d: output %s: %s", m.Index, term.OneLine(out.Path), term.OneLine(s))
		}
		f.left += u.left
		f.got = append(f.got, fetched{m.Index, out.Path, folder, u.files})
		if !f.app.JSON {
			fmt.Fprintln(f.screen.Stream(client.Stdout), term.OneLine(filepath.Join(folder, filepath.FromSlash(out.Path))))
		}
	}
	return nil
}

// output brings the n-th output of an allocation.
func (f *fetcher) output(ctx context.Context, id muster.AllocID, n int, u *untar) error {
	r, err := f.cl.OutputTar(ctx, id, n)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	counted := f.moved.reader(r)
	if err := u.unpack(counted); err != nil {
		return err
	}
	// The archive's own end is not the stream's: a stream that is cut after it is still cut.
	_, err = io.Copy(io.Discard, counted)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
