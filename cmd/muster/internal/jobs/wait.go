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

// waitCommand makes muster job wait.
func waitCommand(a *cli.App) *cobra.Command {
	limit := ""
	c := a.Command("wait NAME", "Wait until a job has ended", `Prints nothing if the job succeeds. The exit code is that of `+"`muster run`"+`: 0 if all members succeeded; of a job with one member the command's own code; else 1. 124 if --timeout is over first. A service ends only when it is stopped.

  muster run --detach --name train -- python3 train.py
  muster job wait train && muster job fetch train`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		var within time.Duration // 0: no limit
		if limit != "" {
			d, err := api.ParseDuration(limit)
			if err != nil || d <= 0 {
				return cli.Usage(fmt.Errorf("--timeout is %q; give a time above 0s, for example 10m", limit))
			}
			within = d.Std()
		}
		key, cl, job, err := a.Job(ctx, args[0])
		if err != nil {
			return err
		}
		if within > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, within)
			defer cancel()
		}
		err = waitForEnd(ctx, a, cl, key, job.UID, job.Version)
		if within > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return cli.ExitWith(cli.ExitTimeout, fmt.Errorf("job %s has not ended within %s; it keeps running", key, limit))
		}
		return err
	})
	c.Flags().StringVar(&limit, "timeout", "", "wait at most this long, for example 10m (default no limit)")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// waitForEnd waits until a version of a job has ended. The error has the exit code of muster run.
func waitForEnd(ctx context.Context, a *cli.App, cl *client.Client, key muster.JobKey, uid string, version uint64) error {
	// Nothing is printed of members: only how the job ends is asked for.
	out := &printer{screen: term.NewScreen(a.Stdout, a.Stderr)}
	f := &follower{cl: cl.Patient(cli.FollowPatience), key: key, uid: uid, version: version, out: out, index: -1}
	if err := f.follow(ctx, "", nil, nil); err != nil {
		return err
	}
	if a.JSON {
		if err := a.PrintJSON(f.job); err != nil {
			return err
		}
	}
	return f.ending(true, false, 0)
}
