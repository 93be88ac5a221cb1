package jobs

import (
	"cmp"
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

// listFlags say which jobs are listed.
type listFlags struct {
	stage  string
	status string
	limit  int
}

// explainedPage is how many jobs a page has if the server also says why jobs wait: at most so many
// are explained on one page.
const explainedPage = 200

// jobListCommand makes muster job list. It reads all pages that it shows before it prints: the
// columns are as wide as their longest cell.
func jobListCommand(a *cli.App) *cobra.Command {
	l := &listFlags{}
	var c *cobra.Command
	c = a.ClientCommand("list", "List jobs", `Lists the newest jobs first, of all namespaces unless --namespace names one. On a terminal it shows the newest 50 unless --limit is given; otherwise all. DONE counts the members that succeeded. REASON says why a job waits or why it ended. On a terminal long cells are cut; muster job show and --json have them whole.

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
		if a.JSON {
			return a.PrintJSON(list)
		}
		if len(list.Jobs) == 0 {
			fmt.Fprintln(a.Stderr, l.none())
			return nil
		}
		printJobs(a, list.Jobs)
		if list.More > 0 {
			fmt.Fprintf(a.Stderr, "muster: %s not shown; --limit 0 shows all\n", muster.Counted(list.More, "older job"))
		}
		return nil
	})
	c.Flags().StringVar(&l.stage, "stage", "", "only jobs in this stage: live, stopping or ended")
	c.Flags().StringVar(&l.status, "status", "", "only jobs with this status: "+strings.Join(api.JobStatuses(), ", "))
	c.Flags().IntVar(&l.limit, "limit", 0, "most jobs to show; 0: all (default 50 on a terminal)")
	a.NamespaceFlag(c, "only this namespace")
	return c
}

func (l *listFlags) check() error {
	if all := api.JobStatuses(); l.status != "" && !slices.Contains(all, l.status) {
		return cli.Usage(fmt.Errorf("--status is %q; it is one of %s", l.status, strings.Join(all, ", ")))
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

// read reads the jobs that the flags choose, the newest first. The server sorts if there is a
// limit. Without one all are read in the order that costs it least, and sorted here. The pages are
// of slightly different moments: the index is that of the last one.
func (l *listFlags) read(ctx context.Context, a *cli.App, cl *client.Client) (*api.JobList, error) {
	list := &api.JobList{Jobs: []api.Job{}}
	q := client.JobQuery{
		Namespace: muster.Namespace(a.Namespace), Stage: muster.JobStage(l.stage), Status: l.status, Newest: l.limit > 0, Waits: true, Limit: explainedPage,
	}
	for {
		if l.limit > 0 {
			q.Limit = min(explainedPage, l.limit-len(list.Jobs))
		}
		page, err := cl.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		list.Jobs, list.Index, list.More, list.Next = append(list.Jobs, page.Jobs...), page.Index, page.More, page.Next
		if q.After = page.Next; page.Next == "" || len(list.Jobs) == l.limit {
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
			cli.JobKeyOf(j.Namespace, j.Name).String(), api.JobStatus(j), fmt.Sprintf("%d/%d", j.Counts.Succeeded, j.Count),
			fmt.Sprint(j.Counts.Running + j.Counts.Placed), fmt.Sprint(j.Counts.Failed), term.Ago(&j.Submitted, now),
			term.OrDash(commandText(j.Command)), cmp.Or(j.Reason, j.Waits),
		})
	}
	a.PrintTable([]string{"JOB", "STATUS", "DONE", "RUN", "FAIL", "AGE", "COMMAND", "REASON"}, rows)
}
