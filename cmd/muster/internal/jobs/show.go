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

// shownJob is what `muster job show --json` prints.
type shownJob struct {
	*api.Job
	Members []shownMember `json:"members"`
}

// shownMember is a member with its newest allocation.
type shownMember struct {
	api.Member
	Newest *api.Alloc `json:"newest,omitempty"`
}

// jobShowCommand makes muster job show. The job is read before its members, so a job that does not
// exist is one clear error.
func jobShowCommand(a *cli.App) *cobra.Command {
	members := 20
	c := a.Command("show NAME", "Show a job and its members", "Shows the newest attempt of each member.", cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		key, cl, job, err := a.Job(ctx, args[0])
		if err != nil {
			return err
		}
		shown, err := membersOf(ctx, cl, key, members)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(shownJob{job, shown})
		}
		printJob(a, job, shown)
		printMembers(a, shown, job.Count)
		return nil
	})
	c.Flags().IntVar(&members, "members", members, "how many members to show; 0 shows all")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// membersOf are the first members of a job, with their newest allocations. Each allocation is asked
// for by itself, so they are few unless the user wants all (most is 0). An allocation that is not
// kept any more is left out.
func membersOf(ctx context.Context, cl *client.Client, key muster.JobKey, most int) ([]shownMember, error) {
	shown := []shownMember{}
	for m, err := range cl.AllMembers(ctx, key, client.MemberQuery{Limit: min(most, client.MaxPage)}) {
		if err != nil {
			return nil, err
		}
		s := shownMember{Member: m}
		if m.Alloc != "" {
			alloc, err := cl.Alloc(ctx, muster.AllocID(m.Alloc))
			// The server drops allocations that ended long ago, and keeps their members.
			if err != nil && !client.IsNotFound(err) {
				return nil, err
			}
			if err == nil {
				s.Newest = alloc
			}
		}
		if shown = append(shown, s); len(shown) == most {
			break
		}
	}
	return shown, nil
}

// printJob prints what holds for the job as a whole.
func printJob(a *cli.App, j *api.Job, members []shownMember) {
	now := time.Now()
	// A job that runs has an age, which the line before shows.
	took := ""
	if j.Ended != nil {
		took = term.Brief(j.Ended.Sub(j.Submitted))
	}
	command, image := "", ""
	if j.Spec != nil {
		command, image = term.ShellWords(j.Spec.Command), imageText(j.Spec.Image, members)
	}
	c := j.Counts
	a.PrintFields(
		"Job", cli.JobKeyOf(j.Namespace, j.Name).String(),
		"Status", api.JobStatus(j),
		"Reason", j.Reason, "Waits", j.Waits,
		"Version", fmt.Sprint(j.Version),
		"Rollout", rolloutText(j.Rollout),
		"Priority", fmt.Sprint(j.Priority),
		"Image", image,
		"Command", command,
		"Submitted", fmt.Sprintf("%s (%s ago)", j.Submitted.Local().Format(time.DateTime), term.Ago(&j.Submitted, now)),
		"Took", took,
		"Members", fmt.Sprintf("%d: %d waiting, %d placed, %d running, %d succeeded, %d failed, %d stopped", j.Count, c.Waiting, c.Placed, c.Running, c.Succeeded, c.Failed, c.Stopped),
	)
}

// imageText is a job's image with the digests that its members were started from: more than one if
// its tag was moved meanwhile.
func imageText(ref string, members []shownMember) string {
	var digests []string
	for _, m := range members {
		if m.Newest != nil && m.Newest.Image != "" && !slices.Contains(digests, m.Newest.Image) {
			digests = append(digests, m.Newest.Image)
		}
	}
	// A digest that the user has written need not be shown a second time.
	if len(digests) == 0 || len(digests) == 1 && strings.HasSuffix(ref, digests[0]) {
		return ref
	}
	return fmt.Sprintf("%s (%s)", ref, strings.Join(digests, ", "))
}

// printMembers prints a row for each member, and how many are not shown. A member is shown by its
// newest attempt: where it ran, how it ended and why.
func printMembers(a *cli.App, shown []shownMember, count int) {
	if len(shown) == 0 {
		return
	}
	now := time.Now()
	var rows [][]string
	for _, m := range shown {
		status, node, exit, took, reason := m.Status, "-", "-", "-", m.Reason
		if al := m.Newest; al != nil {
			node, exit = al.Node, exitText(al)
			// Placed says only that it has a node. What the allocation does there is the answer.
			if m.Status == string(muster.MemberPlaced) {
				status = cli.AllocStatus(al)
			}
			if reason == "" && al.Failure != nil {
				reason = al.Failure.Message
			}
			// A node that is in trouble explains a member that stands still.
			reason = cmp.Or(reason, al.NodeProblem)
			if al.Started != nil {
				end := now
				if al.Ended != nil {
					end = *al.Ended
				}
				took = term.Brief(end.Sub(*al.Started))
			}
		}
		// Why an earlier attempt ended is no reason of one that runs.
		if status == string(muster.AllocRunning) && m.Newest.NodeProblem == "" {
			reason = ""
		}
		// A member that failed and is tried again looks like one that failed.
		if m.RetryAt != nil && m.RetryAt.After(now) {
			reason = strings.TrimPrefix(fmt.Sprintf("%s; retried in %s", reason, term.Brief(m.RetryAt.Sub(now))), "; ")
		}
		rows = append(rows, []string{fmt.Sprint(m.Index), status, fmt.Sprint(m.Attempt), node, exit, took, reason})
	}
	fmt.Fprintln(a.Stdout)
	a.PrintTable([]string{"MEMBER", "STATUS", "ATTEMPT", "NODE", "EXIT", "RAN", "REASON"}, rows)
	if count > len(shown) {
		fmt.Fprintf(a.Stdout, "… and %d more; --members 0 shows all\n", count-len(shown))
	}
}

// exitText is how an allocation's command ended, for tables.
func exitText(al *api.Alloc) string {
	switch {
	case al.Signal != "":
		return al.Signal
	case al.ExitCode != nil:
		return fmt.Sprint(*al.ExitCode)
	}
	return "-"
}
