package jobs

import (
	"cmp"
	"context"
	"errors"
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

// historyPage is how many jobs or attempts one request asks for.
const historyPage = 200

// endedStatuses are the statuses of jobs that have ended.
var endedStatuses = []string{"succeeded", "failed", "stopped"}

// historyFlags choose ended jobs.
type historyFlags struct {
	status, since, until, id string
	limit                    int
}

// endedJobsCommand makes muster history. Versions of a job's specification are another thing: muster
// job history.
func endedJobsCommand(a *cli.App) *cobra.Command {
	h := &historyFlags{}
	c := a.ClientCommand("history [NAME]", "List ended jobs", `Lists jobs that have ended, the newest first, or only those of one name: each submission under a name is a job of its own. The server keeps them for 30 days (retention.history), longer than the job and its output. TOOK is the time from the submission to the end; EXIT is the exit code of the attempt that ended last, CPU the part of the requested CPU that was used, and MEM the most memory of one attempt. The versions of a job's specification are in muster job history.

  muster history --status failed --since 7d
  muster history train                     all jobs of this name
  muster history --id 4k2m1x9c7q3v         one job with its attempts`, cobra.MaximumNArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		q, err := h.query(a, args, time.Now())
		if err != nil {
			return err
		}
		if h.id != "" {
			return h.show(ctx, a, cl)
		}
		return h.list(ctx, a, cl, q)
	})
	c.Flags().StringVar(&h.status, "status", "", "only jobs with this status: "+strings.Join(endedStatuses, ", "))
	c.Flags().StringVar(&h.since, "since", "", "only jobs that ended at this time or later: a time as 2026-09-24T08:00:00Z, a day as 2026-09-24, or how long ago as 7d")
	c.Flags().StringVar(&h.until, "until", "", "only jobs that ended before this time")
	c.Flags().StringVar(&h.id, "id", "", "show the job with this id, with its attempts")
	c.Flags().IntVar(&h.limit, "limit", 50, "most jobs, or attempts with --id, to show; 0: all")
	a.NamespaceFlag(c, "only this namespace")
	return c
}

// query reads the flags, and the name if there is one.
func (h *historyFlags) query(a *cli.App, args []string, now time.Time) (q client.HistoryQuery, err error) {
	if h.limit < 0 {
		return q, cli.Usage(fmt.Errorf("--limit is %d; 0 shows all", h.limit))
	}
	if h.id != "" && (len(args) > 0 || h.status != "" || h.since != "" || h.until != "") {
		return q, cli.Usage(errors.New("--id names one job; leave out the name and the other filters"))
	}
	if h.status != "" && !slices.Contains(endedStatuses, h.status) {
		return q, cli.Usage(fmt.Errorf("--status is %q; it is one of %s", h.status, strings.Join(endedStatuses, ", ")))
	}
	q = client.HistoryQuery{Namespace: a.Namespace, Status: h.status}
	if q.Since, err = moment("--since", h.since, now); err != nil {
		return q, cli.Usage(err)
	}
	if q.Until, err = moment("--until", h.until, now); err != nil {
		return q, cli.Usage(err)
	}
	if len(args) > 0 {
		key, err := a.JobKey(args[0])
		if err != nil {
			return q, err
		}
		q.Namespace, q.Name = string(key.Namespace), key.Name
	}
	return q, nil
}

// moment reads a time, a day (of UTC), or how long before now; "" is the zero time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	// A number alone is a year to some, and seconds to a duration.
	if d, err := api.ParseDuration(text); err == nil && d >= 0 && strings.ContainsAny(text, "smhd") {
		return now.Add(-d.Std()), nil
	}
	return time.Time{}, fmt.Errorf("%s %q: write a time as 2026-09-24T08:00:00Z, a day as 2026-09-24, or how long ago as 7d", flag, text)
}

// list reads all pages that it prints first: the columns are as wide as their longest cell.
func (h *historyFlags) list(ctx context.Context, a *cli.App, cl *client.Client, q client.HistoryQuery) error {
	out := &api.History{Jobs: []api.EndedJob{}}
	for {
		q.Limit = historyPage
		if h.limit > 0 {
			q.Limit = min(historyPage, h.limit-len(out.Jobs))
		}
		page, err := cl.EndedJobs(ctx, q)
		if err != nil {
			return err
		}
		out.Jobs, out.Next = append(out.Jobs, page.Jobs...), page.Next
		if q.After = page.Next; page.Next == "" || len(out.Jobs) == h.limit && h.limit > 0 {
			break
		}
	}
	if a.JSON {
		return a.PrintJSON(out)
	}
	if len(out.Jobs) == 0 {
		fmt.Fprintln(a.Stderr, "muster: no ended jobs match")
		return nil
	}
	now := time.Now()
	var rows [][]string
	for i := range out.Jobs {
		j := &out.Jobs[i]
		rows = append(rows, []string{
			cli.JobKeyOf(j.Namespace, j.Name).String(), j.ID, j.Status, fmt.Sprintf("%d/%d", j.Succeeded, j.Count), fmt.Sprint(j.Failed),
			endOf(j.ExitCode, j.Signal), term.Ago(&j.Ended, now), term.Brief(j.Ended.Sub(j.Submitted)), percent(j.CPUEfficiency), memory(j.PeakMemory), term.OrDash(commandText(j.Command)), j.Reason,
		})
	}
	a.PrintTable([]string{"JOB", "ID", "STATUS", "DONE", "FAIL", "EXIT", "ENDED", "TOOK", "CPU", "MEM", "COMMAND", "REASON"}, rows)
	if out.Next != "" {
		fmt.Fprintln(a.Stderr, "muster: older jobs are not shown; --limit 0 shows all")
	}
	return nil
}

// percent is a part of what was requested, "-" if it is not known.
func percent(part float64) string {
	if part <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*part)
}

func memory(n int64) string {
	if n <= 0 {
		return "-"
	}
	return muster.Bytes(n).String()
}

// endOf is how an attempt ended, as short as possible.
func endOf(code *int, signal string) string {
	switch {
	case signal != "":
		return signal
	case code != nil:
		return fmt.Sprint(*code)
	}
	return "-"
}

func usedCPU(j *api.EndedJob) string {
	if j.CPUSeconds <= 0 {
		return ""
	}
	return fmt.Sprintf("%s, %s of what was requested", term.Brief(time.Duration(j.CPUSeconds*float64(time.Second))), percent(j.CPUEfficiency))
}

func usedMemory(j *api.EndedJob) string {
	if j.PeakMemory <= 0 {
		return ""
	}
	return fmt.Sprintf("%s at most, of %s requested", memory(j.PeakMemory), memory(j.MemoryRequested))
}

func cost(c float64) string {
	if c <= 0 {
		return ""
	}
	return fmt.Sprintf("%.4f", c)
}

// show prints one job with its attempts.
func (h *historyFlags) show(ctx context.Context, a *cli.App, cl *client.Client) error {
	out := &api.EndedJobDetail{Attempts: []api.EndedAttempt{}}
	for {
		limit := historyPage
		if h.limit > 0 {
			limit = min(historyPage, h.limit-len(out.Attempts))
		}
		page, err := cl.EndedJob(ctx, h.id, out.Next, limit)
		if err != nil {
			return cli.WithHint(err, "`muster history` lists ended jobs with their ids")
		}
		out.Job, out.Attempts, out.Next = page.Job, append(out.Attempts, page.Attempts...), page.Next
		if out.Next == "" || len(out.Attempts) == h.limit && h.limit > 0 {
			break
		}
	}
	if a.JSON {
		return a.PrintJSON(out)
	}
	j, now := &out.Job, time.Now()
	ran := time.Duration(j.RunSeconds * float64(time.Second))
	pairs := []string{
		"job", cli.JobKeyOf(j.Namespace, j.Name).String(), "id", j.ID, "status", j.Status, "reason", j.Reason,
		"members", fmt.Sprintf("%d: %d succeeded, %d failed, %d stopped", j.Count, j.Succeeded, j.Failed, j.Stopped),
		"submitted", j.Submitted.Local().Format(time.DateTime), "ended", fmt.Sprintf("%s (%s ago)", j.Ended.Local().Format(time.DateTime), term.Ago(&j.Ended, now)),
		"took", term.Brief(j.Ended.Sub(j.Submitted)), "attempts", fmt.Sprintf("%d, %s in all", j.Attempts, term.Brief(ran)),
		"cpu", usedCPU(j), "memory", usedMemory(j), "cost", cost(j.Cost),
		"image", j.Image, "command", commandText(j.Command),
	}
	term.WriteFields(a.Stdout, pairs...)
	fmt.Fprintln(a.Stdout)
	var rows [][]string
	for i := range out.Attempts {
		t := &out.Attempts[i]
		took := "-"
		if t.Started != nil {
			took = term.Brief(t.Ended.Sub(*t.Started))
		}
		rows = append(rows, []string{t.ID, t.Node, t.Outcome, endOf(t.ExitCode, t.Signal), term.Ago(&t.Ended, now), took, memory(t.PeakMemory), cmp.Or(t.Reason, "-")})
	}
	a.PrintTable([]string{"ATTEMPT", "NODE", "OUTCOME", "EXIT", "ENDED", "RAN", "MEM", "REASON"}, rows)
	if out.Next != "" {
		fmt.Fprintf(a.Stderr, "muster: %s shown; --limit 0 shows all\n", muster.Counted(len(out.Attempts), "attempt"))
	}
	return nil
}
