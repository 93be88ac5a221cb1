package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// logsFlags say which output is printed.
type logsFlags struct {
	// follow goes on until the job has ended.
	follow bool
	// index is the member; -1 for all of them.
	index int
	// attempt counts from 1; 0 is the newest.
	attempt int
	// stdout and stderr leave the other one out; none of them prints both.
	stdout bool
	stderr bool
	// tail is a number of lines or a size as the user wrote it; "" prints all.
	tail string
}

// logsCommand makes muster job logs.
func logsCommand(a *cli.App) *cobra.Command {
	l := &logsFlags{}
	var c *cobra.Command
	c = a.Command("logs NAME[/INDEX]", "Print the output of a job's members", `Prints the newest attempt of each member, or with --attempt an older one. Stdout goes to stdout and stderr to stderr. Lines of a job with several members are prefixed with the member's index, unless --index, or INDEX after the name, selects one. With -f it continues until the job has ended, including further attempts, and exits as `+"`muster run`"+` would: with the command's own exit code if the job has one member, else 1 if any failed. NAME may also be the id of one attempt, as muster history --id shows it: that reaches an earlier job of a name while its output is kept. --json does not change the output.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		// 0 is a member, so no flag is not the same as 0.
		if !c.Flags().Changed("index") {
			l.index = -1
		} else if l.index < 0 {
			return cli.Usage(fmt.Errorf("--index is %d; members are counted from 0", l.index))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		key, job, err := logsJob(ctx, a, cl, args[0], l)
		if err != nil {
			// An earlier job of a name, which muster history shows, is reached by its attempts.
			if id := muster.AllocID(args[0]); isAlloc(id) && !client.IsUnreachable(err) {
				return logsOfAlloc(ctx, a, cl, id, l)
			}
			return err
		}
		return logs(ctx, a, cl, key, job, l)
	})
	c.Flags().BoolVarP(&l.follow, "follow", "f", false, "continue until the job has ended")
	c.Flags().IntVar(&l.index, "index", 0, "only this member, without a prefix")
	c.Flags().IntVar(&l.attempt, "attempt", 0, "this attempt (from 1) instead of the newest; needs --index if there are several members")
	c.Flags().BoolVar(&l.stdout, "stdout", false, "only stdout")
	c.Flags().BoolVar(&l.stderr, "stderr", false, "only stderr")
	c.Flags().StringVar(&l.tail, "tail", "", "only the end of each stream: a number of lines, or a size as 64KiB")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// logsJob is the job that is named: by its name, or as one member of it, JOB/INDEX, which other
// commands take as well; the member is put into l.index then. A job of just that name goes first.
func logsJob(ctx context.Context, a *cli.App, cl *client.Client, name string, l *logsFlags) (key muster.JobKey, job *api.Job, err error) {
	if key, err = a.JobKey(name); err == nil {
		if job, err = cl.Job(ctx, key); err == nil {
			return key, job, nil
		}
		err = cli.JobHint(err)
	}
	// There is no such job, so the last part may be a member.
	member, index, ok := cli.SplitMember(name)
	if !ok || l.index >= 0 || client.IsUnreachable(err) {
		return key, nil, err
	}
	// An error on the way is not the one to report: the user has named a job, and it was not found.
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

// logs prints the output that the flags ask for. It chooses between one attempt, all members as
// they are, and following.
func logs(ctx context.Context, a *cli.App, cl *client.Client, key muster.JobKey, job *api.Job, l *logsFlags) error {
	// A member that does not exist has no output, which would look like one that printed nothing.
	if l.index >= job.Count {
		return cli.Failure(fmt.Errorf("job %s has no member %d: it has %d, counted from 0", key, l.index, job.Count))
	}
	// The only member is meant, and its lines need no number in front.
	if job.Count == 1 {
		l.index = 0
	}
	out, err := logsPrinter(a, l)
	if err != nil {
		return err
	}
	switch {
	case l.attempt != 0 && l.index < 0:
		return cli.Usage(errors.New("--attempt needs --index: attempts are counted for each member"))
	case l.attempt < 0:
		return cli.Usage(fmt.Errorf("--attempt is %d; attempts are counted from 1", l.attempt))
	// One attempt is all that is wanted.
	case l.attempt > 0 || l.index >= 0 && !l.follow:
		return logsOfOne(ctx, cl, key, job, out, l)
	// A job that was submitted again meanwhile ends the following; see follower.
	case l.follow:
		f := &follower{cl: cl.Patient(cli.FollowPatience), key: key, uid: job.UID, version: job.Version, out: out, index: l.index}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Without it a job that waits, for a node or for the disk of the server, looks like one
		// that hangs.
		go (&progress{cl: cl, key: key, screen: out.screen, began: time.Now(), reasons: true}).run(ctx)
		if err := f.follow(ctx, "", nil, nil); err != nil || l.index >= 0 && job.Count > 1 {
			return err // one member of several is not how the job ended
		}
		return f.ending(true, false, 0)
	}
	return logsOfAll(ctx, cl, key, out)
}

// isAlloc reports whether a name may be the id of an allocation.
func isAlloc(id muster.AllocID) bool {
	_, _, _, err := id.Parse()
	return err == nil
}

// logsOfAlloc prints the output of one attempt that is named by its id.
func logsOfAlloc(ctx context.Context, a *cli.App, cl *client.Client, id muster.AllocID, l *logsFlags) error {
	if l.index >= 0 || l.attempt != 0 {
		return cli.Usage(fmt.Errorf("%s is one attempt; leave out --index and --attempt", id))
	}
	al, err := cl.Alloc(ctx, id)
	if err != nil {
		return cli.WithHint(err, "logs are kept for as long as the job is (retention.jobs, blob.retention); `muster history` keeps jobs for longer, without their output")
	}
	l.index = al.Index
	out, err := logsPrinter(a, l)
	if err != nil {
		return err
	}
	return out.print(ctx, cl, id, al.Index, l.follow)
}

// logsPrinter returns a printer of the streams and the tail that the flags name. Both streams are
// printed unless one is named.
func logsPrinter(a *cli.App, l *logsFlags) (*printer, error) {
	out := &printer{screen: term.NewScreen(a.Stdout, a.Stderr), prefix: l.index < 0}
	if l.stdout || !l.stderr {
		out.streams = append(out.streams, client.Stdout)
	}
	if l.stderr || !l.stdout {
		out.streams = append(out.streams, client.Stderr)
	}
	if l.tail != "" {
		tail, err := readTail(l.tail)
		if err != nil {
			return nil, cli.Usage(fmt.Errorf("--tail: %w", err))
		}
		out.tail = tail
	}
	return out, nil
}

// logsOfOne prints the output of one attempt of one member: the newest of this version of the job,
// or any that is named.
func logsOfOne(ctx context.Context, cl *client.Client, key muster.JobKey, job *api.Job, out *printer, l *logsFlags) error {
	var found *api.Alloc
	for al, err := range cl.AllJobAllocs(ctx, key, client.AllocQuery{Index: &l.index}) {
		if err != nil {
			return err
		}
		// An attempt that is named may be of an earlier version; the newest may not.
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
	// What follows waits for a server that goes away.
	if l.follow {
		cl = cl.Patient(cli.FollowPatience)
	}
	return out.print(ctx, cl, muster.AllocID(found.ID), found.Index, l.follow)
}

// logsOfAll prints the output of the newest attempt of each member, one after the other. What
// cannot be read of one does not keep the others from being printed.
func logsOfAll(ctx context.Context, cl *client.Client, key muster.JobKey, out *printer) error {
	var failed error
	for m, err := range cl.AllMembers(ctx, key, client.MemberQuery{}) {
		if err != nil {
			return err
		}
		// A member that has not started has printed nothing.
		if m.Alloc == "" {
			continue
		}
		al, err := cl.Alloc(ctx, muster.AllocID(m.Alloc))
		// Most members of a large job print nothing, and each would cost two requests.
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
