package jobs

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// scaleCommand makes muster job scale. Only the count changes, so the members that stay are not
// replaced.
func scaleCommand(a *cli.App) *cobra.Command {
	var s api.JobScale
	c := a.Command("scale NAME COUNT", "Change the number of a service's members", `This makes a new version, but does not restart members. Members beyond the count are stopped. The command does not wait for that.`, cobra.ExactArgs(2), func(ctx context.Context, args []string) error {
		count, err := strconv.Atoi(args[1])
		if err != nil || count < 1 {
			return cli.Usage(fmt.Errorf("COUNT is %q; give a number from 1; `muster job stop %s` ends the service", args[1], args[0]))
		}
		s.Count = count
		key, cl, err := a.JobAt(args[0])
		if err != nil {
			return err
		}
		done, err := cl.Scale(ctx, key, s)
		if err != nil {
			return cli.JobHint(err)
		}
		return printVersion(a, done, fmt.Sprintf("job %s has %s", key, muster.Counted(count, "member")))
	})
	c.Flags().StringVar(&s.Reason, "reason", "", "reason, recorded in the history")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// revertCommand makes muster job revert. The server makes a new version of the old one; history
// only grows.
func revertCommand(a *cli.App) *cobra.Command {
	var r api.JobRevert
	c := a.Command("revert NAME [VERSION]", "Go back to an earlier version of a service", `Without VERSION: to the newest earlier version that was healthy. It is submitted as a new version and rolled out like any other; members that still run it are not replaced. The count and the priority do not change.`, cobra.RangeArgs(1, 2), func(ctx context.Context, args []string) error {
		if len(args) == 2 {
			v, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil || v == 0 {
				return cli.Usage(fmt.Errorf("VERSION is %q; give a number that `muster job history %s` lists", args[1], args[0]))
			}
			r.Version = v
		}
		key, cl, err := a.JobAt(args[0])
		if err != nil {
			return err
		}
		done, err := cl.Revert(ctx, key, r)
		if err != nil {
			return cli.JobHint(err)
		}
		return printVersion(a, done, fmt.Sprintf("job %s goes back", key))
	})
	c.Flags().StringVar(&r.Reason, "reason", "", "reason, recorded in the history")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// printVersion says what came of a submission. What begins the sentence, and is true also if
// nothing had to be done.
func printVersion(a *cli.App, done *api.JobSubmitted, what string) error {
	if a.JSON {
		return a.PrintJSON(done)
	}
	if done.Unchanged {
		fmt.Fprintf(a.Stderr, "muster: %s already, as version %d says; nothing was done\n", what, done.Version)
		return nil
	}
	_, err := fmt.Fprintf(a.Stdout, "%s: version %d\n", what, done.Version)
	return err
}

// historyCommand makes muster job history. A row says what ran, how far its rollout came, and why
// it was submitted.
func historyCommand(a *cli.App) *cobra.Command {
	c := a.Command("history NAME", "List the versions of a job", `The newest first. For a service or system job, up to ten versions before the current one are kept; --json has their specifications.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		key, cl, err := a.JobAt(args[0])
		if err != nil {
			return err
		}
		h, err := cl.History(ctx, key)
		if err != nil {
			return cli.JobHint(err)
		}
		if a.JSON {
			return a.PrintJSON(h)
		}
		now := time.Now()
		var rows [][]string
		for i := range h.Versions {
			v := &h.Versions[i]
			// The version that is meant to run is not always the newest row: a revert is a version
			// too.
			number := fmt.Sprint(v.Version)
			if v.Current {
				number += " (current)"
			}
			rollout, why := v.Rollout, v.Note
			rollout = cmp.Or(rollout, "-")
			if v.Reason != "" {
				why = strings.TrimPrefix(why+"; "+v.Reason, "; ")
			}
			rows = append(rows, []string{number, rollout, term.Ago(&v.Submitted, now), fmt.Sprint(v.Spec.Count), imageOrCommand(v.Spec), why})
		}
		a.PrintTable([]string{"VERSION", "ROLLOUT", "AGE", "COUNT", "RUNS", "WHY"}, rows)
		return nil
	})
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// imageOrCommand is what tells versions of a job apart in a table: its image, or its command if it
// has none.
func imageOrCommand(s *api.JobSpec) string {
	if s.Image != "" {
		return s.Image
	}
	return term.ShellWords(s.Command)
}

// rolloutText is how far a rollout is, for people; "" if there is none.
func rolloutText(r *api.Rollout) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%s: %d of %d members run the version, %d healthy", r.Stage, r.Updated, r.Wanted, r.Healthy)
	if r.Stable != 0 && r.Stage != "done" {
		text += fmt.Sprintf("; version %d was healthy", r.Stable)
	}
	if r.Reason != "" {
		text += "; " + r.Reason
	}
	return text
}
