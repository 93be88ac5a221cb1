package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// logsFlags say which output is printed.
type logsFlags struct {
	follow  bool
	index   int
	attempt int
	stdout  bool
	stderr  bool
	tail    string
}

func logsCommand(a *cli.App) *cobra.Command {
	l := &logsFlags{}
	var c *cobra.Command
	c = a.Command("logs NAME[/INDEX]", "Print what a job's members printed", `Of each member the newest attempt, or with --attempt an older one. Stdout goes to stdout and stderr to stderr, as
they came; of a job with more members, each line has its member in front, unless
--index, or INDEX after the name, names one. With -f goes on until the job has ended, with further attempts as well.
Output is printed as it came with --json too.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		if !c.Flags().Changed("index") {
			l.index = -1
		} else if l.index < 0 {
			return cli.Usage(fmt.Errorf("--index is %d; members are counted from 0", l.index))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		key, job, err := logsJob(a, ctx, cl, args[0], l)
		if err != nil {
			return err
		}
		return logs(a, ctx, cl, key, job, l)
	})
	c.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on until the job has ended")
	c.Flags().IntVar(&l.index, "index", 0, "only of this member, without its number in front")
	c.Flags().IntVar(&l.attempt, "attempt", 0, "this attempt (from 1) instead of the newest; needs --index if there are more members")
	c.Flags().BoolVar(&l.stdout, "stdout", false, "only stdout")
	c.Flags().BoolVar(&l.stderr, "stderr", false, "only stderr")
	c.Flags().StringVar(&l.tail, "tail", "", "only so much of the end of each stream, as 64KiB")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// logsJob is the job that is named: by its name, or one member of it as other commands take it, JOB/INDEX, which
// is then l.index. A job of just that name goes first.
func logsJob(a *cli.App, ctx context.Context, cl *client.Client, name string, l *logsFlags) (key muster.JobKey, job *api.Job, err error) {
	if key, err = a.JobKey(name); err == nil {
		if job, err = cl.Job(ctx, key); err == nil {
			return key, job, nil
		}
		err = cli.JobHint(err)
	}
	member, index, ok := cli.SplitMember(name)
	if !ok || l.index >= 0 || client.IsUnreachable(err) {
		return key, nil, err
	}
	of, bad := a.JobKey(member)
	if bad != nil {
		return key, nil, err
	}
	found, bad := cl.Job(ctx, of)
	if bad != nil {
		return key, nil, err
	}
	l.index = index
	return of, found, nil
}

func logs(a *cli.App, ctx context.Context, cl *client.Client, key muster.JobKey, job *api.Job, l *logsFlags) error {
	if l.index >= job.Count {
		return cli.Failure(fmt.Errorf("job %s has no member %d: it has %d, counted from 0", key, l.index, job.Count))
	}
	if job.Count == 1 {
		l.index = 0
	}
	out := &printer{screen: term.NewScreen(a.Stdout, a.Stderr), prefix: l.index < 0}
	if l.stdout || !l.stderr {
		out.streams = append(out.streams, client.Stdout)
	}
	if l.stderr || !l.stdout {
		out.streams = append(out.streams, client.Stderr)
	}
	if l.tail != "" {
		tail, err := api.ParseSize(l.tail)
		if err != nil {
			return cli.Usage(fmt.Errorf("--tail: %w", err))
		}
		if !strings.ContainsFunc(l.tail, unicode.IsLetter) {
			// Elsewhere such a number is of lines: better no answer than a wrong one.
			return cli.Usage(fmt.Errorf("--tail: %q has no unit; write a size as 64KiB or %sB, or take lines with `| tail -n %s`", l.tail, l.tail, l.tail))
		}
		out.tail = int64(tail)
	}
	switch {
	case l.attempt != 0 && l.index < 0:
		return cli.Usage(errors.New("--attempt needs --index: attempts are counted for each member"))
	case l.attempt < 0:
		return cli.Usage(fmt.Errorf("--attempt is %d; attempts are counted from 1", l.attempt))
	case l.attempt > 0 || l.index >= 0 && !l.follow:
		return logsOfOne(a, ctx, cl, key, job, out, l)
	case l.follow:
		f := &follower{cl: cl.Patient(cli.FollowPatience), key: key, uid: job.UID, version: job.Version, out: out, index: l.index}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Without it a job that waits, for a node or for the disk of the server, looks like one that hangs.
		go (&progress{cl: cl, key: key, screen: out.screen, began: time.Now(), reasons: true}).run(ctx)
		return f.follow(ctx, "", nil, nil)
	}
	return logsOfAll(a, ctx, cl, key, out)
}

// logsOfOne prints the output of one attempt of one member: the newest of this version of the job, or any that is named.
func logsOfOne(a *cli.App, ctx context.Context, cl *client.Client, key muster.JobKey, job *api.Job, out *printer, l *logsFlags) error {
	var found *api.Alloc
	for al, err := range cl.AllJobAllocs(ctx, key, client.AllocQuery{Index: &l.index}) {
		if err != nil {
			return err
		}
		newest := al.Version == job.Version && (found == nil || al.Attempt > found.Attempt)
		if al.Index == l.index && (l.attempt == al.Attempt || l.attempt == 0 && newest) {
			found = &al
		}
	}
	switch {
	case found == nil && l.attempt > 0:
		return cli.Failure(fmt.Errorf("job %s: member %d has no attempt %d", key, l.index, l.attempt))
	case found == nil:
		out.screen.Say("member %d has not started yet", l.index)
		return nil
	}
	if l.follow {
		cl = cl.Patient(cli.FollowPatience)
	}
	return out.print(ctx, cl, muster.AllocID(found.ID), found.Index, l.follow)
}

// logsOfAll prints the output of the newest attempt of each member, one after the other.
func logsOfAll(a *cli.App, ctx context.Context, cl *client.Client, key muster.JobKey, out *printer) error {
	var failed error
	for m, err := range cl.AllMembers(ctx, key, client.MemberQuery{}) {
		if err != nil {
			return err
		}
		if m.Alloc == "" {
			continue
		}
		al, err := cl.Alloc(ctx, muster.AllocID(m.Alloc))
		if err == nil && out.silent(al) {
			continue
		}
		if err == nil {
			err = out.print(ctx, cl, muster.AllocID(m.Alloc), m.Index, false)
		}
		if err != nil && (ctx.Err() != nil || client.IsUnreachable(err)) {
			return err
		}
		if err != nil {
			out.screen.Say("member %d: %v", m.Index, err)
			failed = cli.ExitSilently(cli.ExitFailed)
		}
	}
	return failed
}
