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

// memberStatuses are the values of --status: those that the column shows.
var memberStatuses = []string{"failed", "running", "placed", "waiting", "stopped", "succeeded"}

// memberOrder is the order of the members of a job that has more than are shown: what failed is
// looked for first, then what is going on. To the server a member that runs is placed.
var memberOrder = []muster.MemberStatus{muster.MemberFailed, muster.MemberPlaced, muster.MemberWaiting, muster.MemberStopped, muster.MemberSucceeded}

// showFlags say which members are shown.
type showFlags struct {
	members int
	status  string
}

func (f *showFlags) check() error {
	if f.status != "" && !slices.Contains(memberStatuses, f.status) {
		return cli.Usage(fmt.Errorf("--status is %q; it is one of %s", f.status, strings.Join(memberStatuses, ", ")))
	}
	if f.members < 0 {
		return cli.Usage(fmt.Errorf("--members is %d; 0 shows all", f.members))
	}
	return nil
}

// jobShowCommand makes muster job show. The job is read before its members, so a job that does not
// exist is one clear error.
func jobShowCommand(a *cli.App) *cobra.Command {
	f := &showFlags{members: 20}
	c := a.Command("show NAME", "Show a job and its members", `Shows the newest attempt of each member. Of a job with more members than are shown, those that failed come first, then those that run, then those that wait.

  muster job show sweep --status failed --members 0`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		if err := f.check(); err != nil {
			return err
		}
		_, cl, job, err := a.Job(ctx, args[0])
		if err != nil {
			return err
		}
		shown, err := f.read(ctx, cl, job)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(shownJob{job, shown})
		}
		printJob(a, job, shown)
		printMembers(a, shown, f.all(job), f.status)
		return nil
	})
	c.Flags().IntVar(&f.members, "members", f.members, "how many members to show; 0 shows all")
	c.Flags().StringVar(&f.status, "status", "", "only members with this status: "+strings.Join(memberStatuses, ", "))
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// all is how many members the flags choose, without --members.
func (f *showFlags) all(j *api.Job) int {
	c := j.Counts
	if n, is := map[string]int{"failed": c.Failed, "running": c.Running, "placed": c.Placed, "waiting": c.Waiting, "stopped": c.Stopped, "succeeded": c.Succeeded}[f.status]; is {
		return n
	}
	return j.Count
}

// read reads the members that are shown. By index if that is all of them; else in memberOrder.
func (f *showFlags) read(ctx context.Context, cl *client.Client, job *api.Job) ([]shownMember, error) {
	r := &memberReader{cl: cl, key: cli.JobKeyOf(job.Namespace, job.Name), flags: f, shown: []shownMember{}, seen: map[int]bool{}}
	statuses := memberOrder
	switch {
	case f.status == "running":
		statuses = []muster.MemberStatus{muster.MemberPlaced}
	case f.status != "":
		statuses = []muster.MemberStatus{muster.MemberStatus(f.status)}
	case f.members == 0 || job.Count <= f.members:
		statuses = []muster.MemberStatus{""}
	}
	for _, status := range statuses {
		if err := r.read(ctx, status); err != nil {
			return nil, err
		}
	}
	return r.shown, nil
}

// memberReader reads members with their newest allocations. Each allocation is asked for by itself,
// so they are few unless the user wants all.
type memberReader struct {
	cl    *client.Client
	key   muster.JobKey
	flags *showFlags
	shown []shownMember
	// seen are their indexes: a member may change its status between two requests.
	seen map[int]bool
}

// read adds the members that have a status to the server, by index; "" stands for all.
func (r *memberReader) read(ctx context.Context, status muster.MemberStatus) error {
	if r.full() {
		return nil
	}
	for m, err := range r.cl.AllMembers(ctx, r.key, client.MemberQuery{Status: status, Limit: min(r.flags.members, client.MaxPage)}) {
		if err != nil {
			return err
		}
		s, err := r.withNewest(ctx, m)
		if err != nil {
			return err
		}
		// What is asked for as running is not what is placed, and the other way round.
		if want := r.flags.status; r.seen[m.Index] || status == muster.MemberPlaced && want != "" && (want == "running") != s.runs() {
			continue
		}
		r.seen[m.Index] = true
		if r.shown = append(r.shown, s); r.full() {
			return nil
		}
	}
	return nil
}

func (r *memberReader) full() bool { return r.flags.members > 0 && len(r.shown) >= r.flags.members }

// withNewest reads a member's newest allocation. One that is not kept any more is left out.
func (r *memberReader) withNewest(ctx context.Context, m api.Member) (shownMember, error) {
	s := shownMember{Member: m}
	if m.Alloc == "" {
		return s, nil
	}
	alloc, err := r.cl.Alloc(ctx, muster.AllocID(m.Alloc))
	// The server drops allocations that ended long ago, and keeps their members.
	if err != nil && !client.IsNotFound(err) {
		return s, err
	}
	if err == nil {
		s.Newest = alloc
	}
	return s, nil
}

// runs reports whether the member's command has begun, as Running in the counts of its job does.
func (m *shownMember) runs() bool {
	return m.Newest != nil && m.Newest.Status == string(muster.AllocRunning)
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
		command, image = commandText(j.Spec.Command), imageText(j.Spec.Image, members)
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

// printMembers prints a row for each member, and how many of all that the status chooses are not
// shown. A member is shown by its
// newest attempt: where it ran, how it ended and why.
func printMembers(a *cli.App, shown []shownMember, count int, status string) {
	if len(shown) == 0 {
		if status != "" {
			fmt.Fprintf(a.Stderr, "muster: no members with status %s\n", status)
		}
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
