package jobs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// retryCommand makes muster job retry.
func retryCommand(a *cli.App) *cobra.Command {
	all, wait := false, false
	c := a.Command("retry NAME [MEMBER...]", "Retry members of a batch job that did not succeed", `Runs members again that failed, each with all attempts of the restart policy. What succeeded is
not run again, and keeps its outputs. The job keeps its spec; submit it again to change that.
Without MEMBER these are all members that failed, and those that did not run because the job failed.

  muster job retry sweep             # all that failed
  muster job retry sweep 7 20-29     # only these, by index; 20-29 are ten
  muster job retry sweep --all       # also those that a user stopped

Of a job that is running only members that have failed can be retried.`, cobra.MinimumNArgs(1), func(ctx context.Context, args []string) error {
		members, err := memberRanges(args[1:])
		if err != nil {
			return cli.Usage(err)
		}
		if all && len(members) > 0 {
			return cli.Usage(fmt.Errorf("--all and members exclude each other; leave out one of them"))
		}
		key, cl, err := a.JobAt(args[0])
		if err != nil {
			return err
		}
		done, err := cl.Retry(ctx, key, api.JobRetry{Members: members, All: all}, client.NewKey())
		if err != nil {
			return cli.JobHint(err)
		}
		if wait {
			return waitForEnd(ctx, a, cl, key, done.UID, done.Version)
		}
		if a.JSON {
			return a.PrintJSON(done)
		}
		fmt.Fprintf(a.Stdout, "job %s: %s again\n", key, membersRun(done.Retried))
		return nil
	})
	c.Flags().BoolVar(&all, "all", false, "also members that were stopped by a user")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the job has ended, as muster job wait does")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

func membersRun(n int) string {
	if n == 1 {
		return "1 member runs"
	}
	return fmt.Sprintf("%d members run", n)
}

// memberRanges reads indexes of members as users of arrays write them: 7, 20-29, or several of them
// with commas. The result is sorted, and has none twice; nil without arguments.
func memberRanges(args []string) (members []int, err error) {
	for _, word := range strings.FieldsFunc(strings.Join(args, ","), func(r rune) bool { return r == ',' }) {
		first, last, isRange := strings.Cut(word, "-")
		from, err := strconv.Atoi(first)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from {
			return nil, fmt.Errorf("%q is no member; give an index as 7, or the first and the last as 20-29", word)
		}
		if to-from >= api.MaxRetryMembers || len(members)+to-from >= api.MaxRetryMembers {
			return nil, fmt.Errorf("%s names more than %d members; without members all that failed are retried", word, api.MaxRetryMembers)
		}
		for i := from; i <= to; i++ {
			members = append(members, i)
		}
	}
	if len(args) > 0 && len(members) == 0 {
		return nil, fmt.Errorf("%q names no member; give an index as 7, or the first and the last as 20-29", strings.Join(args, " "))
	}
	slices.Sort(members)
	return slices.Compact(members), nil
}
