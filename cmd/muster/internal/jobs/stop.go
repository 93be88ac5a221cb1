package jobs

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
)

// stopCommand makes muster job stop. It does not wait for the end: that may take as long as the
// members' grace time.
func stopCommand(a *cli.App) *cobra.Command {
	reason := ""
	c := a.Command("stop NAME", "Stop a job", `Its members get SIGTERM, and SIGKILL after their grace time. The command
does not wait for that: see `+"`muster job show NAME`"+`.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		key, cl, err := a.JobAt(args[0])
		if err != nil {
			return err
		}
		job, err := cl.Stop(ctx, key, reason)
		if err != nil {
			return cli.JobHint(err)
		}
		if a.JSON {
			return a.PrintJSON(job)
		}
		if job.Stage == string(muster.JobEnded) {
			fmt.Fprintf(a.Stdout, "job %s has ended: %s\n", key, api.JobStatus(job))
			return nil
		}
		fmt.Fprintf(a.Stdout, "job %s is stopping\n", key)
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "reason, recorded in the history")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}
