package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// jobListCommand makes muster job list. It reads all pages before it prints: the columns are as
// wide as their longest cell.
func jobListCommand(a *cli.App) *cobra.Command {
	var stage string
	c := a.ClientCommand("list", "List jobs", "Of all namespaces, unless --namespace names one.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		list := api.JobList{Jobs: []api.Job{}}
		q := client.JobQuery{Namespace: muster.Namespace(a.Namespace), Stage: muster.JobStage(stage), Limit: client.MaxPage}
		for {
			page, err := cl.Jobs(ctx, q)
			if err != nil {
				return err
			}
			// The pages are of slightly different moments. The index is that of the last one.
			list.Jobs, list.Index = append(list.Jobs, page.Jobs...), page.Index
			if q.After = page.Next; page.Next == "" {
				break
			}
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		if len(list.Jobs) == 0 {
			fmt.Fprintln(a.Stderr, "muster: no jobs; `muster run -- COMMAND` makes one")
			return nil
		}
		now := time.Now()
		var rows [][]string
		for i := range list.Jobs {
			j := &list.Jobs[i]
			rows = append(rows, []string{
				cli.JobKeyOf(j.Namespace, j.Name).String(), cli.JobStatus(j), fmt.Sprintf("%d/%d", j.Counts.Succeeded, j.Count),
				fmt.Sprint(j.Counts.Running + j.Counts.Placed), fmt.Sprint(j.Counts.Failed), term.Ago(&j.Submitted, now), j.Reason,
			})
		}
		a.PrintTable([]string{"JOB", "STATUS", "SUCCEEDED", "RUNNING", "FAILED", "AGE", "REASON"}, rows)
		return nil
	})
	c.Flags().StringVar(&stage, "stage", "", "only jobs in this stage: live, stopping or ended")
	a.NamespaceFlag(c, "only this namespace")
	return c
}
