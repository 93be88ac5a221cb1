package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
)

func (a *app) stopCommand() *cobra.Command {
	reason := ""
	c := a.command("stop NAME", "Stop a job", `Its members are asked to end with TERM, and killed after their grace time. The command
does not wait for that: see `+"`muster job show NAME`"+`.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		key, cl, err := a.jobAt(args[0])
		if err != nil {
			return err
		}
		job, err := cl.Stop(ctx, key, reason)
		if err != nil {
			return jobHint(err)
		}
		if a.json {
			return a.printJSON(job)
		}
		if job.Stage == string(muster.JobEnded) {
			fmt.Fprintf(a.stdout, "job %s has ended: %s\n", key, standing(job))
			return nil
		}
		fmt.Fprintf(a.stdout, "job %s is stopping\n", key)
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "why, for those who ask later")
	a.namespaceFlag(c, "namespace of the job")
	return c
}
