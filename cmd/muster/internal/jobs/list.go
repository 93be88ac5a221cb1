package jobs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// jobStatuses are the values of --status: those that the column shows.
var jobStatuses = []string{"waiting", "running", "stopping", "succeeded", "failed", "stopped"}

// listFlags say which jobs are listed.
type listFlags struct {
	stage  string
	status string
	limit  int
}

// jobListCommand makes muster job list. It reads all pages before it prints: the columns are as
// wide as their longest cell, and the newest jobs may be on any page.
func jobListCommand(a *cli.App) *cobra.Command {
	l := &listFlags{}
	var c *cobra.Command
	c = a.ClientCommand("list", "List jobs", `Lists the newest jobs first, of all namespaces unless --namespace names one. On a terminal it shows the newest 50 unless --limit is given; otherwise all.

  muster job list --status failed
  muster job list --limit 0 --json`, cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		if !c.Flags().Changed("limit") && !a.JSON && term.IsTerminal(a.Stdout) {
			l.limit = 50
		}
		if err := l.check(); err != nil {
			return err
		}
		list, err := l.read(ctx, a, cl)
		if err != nil {
			return err
		}
		found := len(list.Jobs)
		if l.limit > 0 {
			list.Jobs = list.Jobs[:min(l.limit, found)]
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		if found == 0 {
			fmt.Fprintln(a.Stderr, l.none())
			return nil
		}
		printJobs(a, list.Jobs)
		if more := found - len(list.Jobs); more > 0 {
			fmt.Fprintf(a.Stderr, "muster: %s not shown; --limit 0 shows all\n", muster.Counted(more, "older job"))
		}
		return nil
	})
	c.Flags().StringVar(&l.stage, "stage", "", "only jobs in this stage: live, stopping or ended")
	c.Flags().StringVar(&l.status, "status", "", "only jobs with this status: "+strings.Join(jobStatuses, ", "))
	c.Flags().IntVar(&l.limit, "limit", 0, "most jobs to show; 0: all (default 50 on a terminal)")
	a.NamespaceFlag(c, "only this namespace")
	return c
}

func (l *listFlags) check() error {
	if l.status != "" && !slices.Contains(jobStatuses, l.status) {
		return cli.Usage(fmt.Errorf("--status is %q; it is one of %s", l.status, strings.Join(jobStatuses, ", ")))
	}
	if l.limit < 0 {
		return cli.Usage(fmt.Errorf("--limit is %d; 0 shows all", l.limit))
	}
	return nil
}

// none says that there is nothing to list, and in which choice.
func (l *listFlags) none() string {
	switch {
	case l.status != "":
		return "muster: no jobs with status " + l.status
	case l.stage != "":
		return "muster: no jobs in stage " + l.stage
	}
	return "muster: no jobs; `muster run -- COMMAND` makes one"
}

// read reads all pages, and returns the jobs that the flags choose, the newest first.
func (l *listFlags) read(ctx context.Context, a *cli.App, cl *client.Client) (*api.JobList, error) {
	list := &api.JobList{Jobs: []api.Job{}}
	q := client.JobQuery{Namespace: muster.Namespace(a.Namespace), Stage: muster.JobStage(l.stage), Limit: client.MaxPage}
	for {
		page, err := cl.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			if l.status == "" || cli.JobStatus(&page.Jobs[i]) == l.status {
				list.Jobs = append(list.Jobs, page.Jobs[i])
			}
		}
		// The pages are of slightly different moments. The index is that of the last one.
		list.Index = page.Index
		if q.After = page.Next; page.Next == "" {
			break
		}
	}
	slices.SortStableFunc(list.Jobs, newestFirst)
	return list, nil
}

func newestFirst(x, y api.Job) int { return y.Submitted.Compare(x.Submitted) }

func printJobs(a *cli.App, jobs []api.Job) {
	now := time.Now()
	var rows [][]string
	for i := range jobs {
		j := &jobs[i]
		rows = append(rows, []string{
			cli.JobKeyOf(j.Namespace, j.Name).String(), cli.JobStatus(j), fmt.Sprintf("%d/%d", j.Counts.Succeeded, j.Count),
			fmt.Sprint(j.Counts.Running + j.Counts.Placed), fmt.Sprint(j.Counts.Failed), term.Ago(&j.Submitted, now), j.Reason,
		})
	}
	a.PrintTable([]string{"JOB", "STATUS", "SUCCEEDED", "RUNNING", "FAILED", "AGE", "REASON"}, rows)
}
