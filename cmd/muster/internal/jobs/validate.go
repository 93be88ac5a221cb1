package jobs

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
	"github.com/musterhq/muster/internal/specfile"
)

// validateCommand makes muster job validate. The file is checked here first, so that a wrong one is
// found without a server; whether the job fits only the server knows.
func validateCommand(a *cli.App) *cobra.Command {
	var local, plan, replace bool
	c := a.Command("validate FILE", "Check a job file, and whether the job fits", `Reads the file as submit does, and asks the server whether one member fits any of its offerings. Nothing is submitted or uploaded. With --local the server is not asked. With --plan the server does a dry run: what happens to an existing job of that name, where members would be placed and why, what would be preempted, what the other members would wait for, and why a member does not fit each class of equal nodes.
Exit code 0: it could be submitted and fits; 1: it fits nowhere, or would be refused now; 2: the file is wrong.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		spec, err := specfile.JobAt(args[0], a.Stdin)
		if err != nil {
			return err
		}
		if err := intoNamespace(a, spec); err != nil {
			return err
		}
		// Nothing is uploaded, but the files must be there.
		if _, err := transfer.DigestInputs(spec, cli.FolderOf(args[0])); err != nil {
			return cli.Usage(fmt.Errorf("%s: %w", args[0], err))
		}
		out := &api.JobValidation{Spec: *spec, Fits: true}
		if !local {
			cl, err := a.Connect()
			if err == nil {
				// A plan costs the server more than a look at its offerings, so it is made only if
				// it is asked for.
				ask := cl.Validate
				if plan {
					ask = cl.ValidatePlan
				}
				out, err = ask(ctx, api.JobSubmission{Spec: *spec, Replace: replace})
			}
			if err != nil {
				// That the file is right is worth saying, even if nothing else is known.
				return fmt.Errorf("%s is well-formed, but its fit is not known: %w", args[0], err)
			}
		}
		if a.JSON {
			if err := a.PrintJSON(out); err != nil {
				return err
			}
		}
		switch {
		// The worst is said first: the server would refuse it, it fits nowhere, it would be refused
		// now.
		case len(out.Problems) > 0:
			return cli.Usage(&api.Problem{Title: args[0] + " would be refused", Errors: out.Problems})
		case !out.Fits:
			return cli.Failure(fmt.Errorf("%s is well-formed, but fits nowhere: %s", args[0], out.Why))
		case out.Plan != nil && out.Plan.Refused != "":
			return cli.Failure(fmt.Errorf("%s is well-formed, but would be refused now: %s", args[0], out.Plan.Refused))
		case a.JSON:
			return nil
		}
		fmt.Fprintf(a.Stdout, "%s is well-formed%s\n", args[0], term.Clean(term.SuffixIf(out.Why != "", "; "+out.Why)))
		if out.Plan != nil {
			printPlan(a, out.Plan, out.Spec.Name)
		}
		return nil
	})
	c.Flags().BoolVar(&local, "local", false, "do not ask the server")
	c.Flags().BoolVar(&plan, "plan", false, "also show what submitting it would do now")
	c.Flags().BoolVar(&replace, "replace", false, "with --plan: as submit --replace would")
	c.MarkFlagsMutuallyExclusive("local", "plan")
	c.MarkFlagsMutuallyExclusive("local", "replace")
	a.NamespaceFlag(c, "namespace of the job, if the file names none")
	return c
}

// linesOfPlan is how many nodes are shown to a person; --json has all.
const linesOfPlan = 20

// shownStops is how many of the members that would be stopped are named.
const shownStops = 10

// printPlan prints what a submission would do now: to the job that has the name, then where members
// would go, which allocations would give way, and why the others would wait.
func printPlan(a *cli.App, p *api.JobPlan, name string) {
	printChange(a, p, name)
	if p.Paused != "" {
		fmt.Fprintf(a.Stdout, "nothing is placed now: %s; without that:\n", term.Clean(p.Paused))
	}
	// The server looks at some of the members only: the others may be placed as well.
	more := ""
	if p.More {
		more = ", and maybe more"
	}
	fmt.Fprintf(a.Stdout, "now %d would be placed%s, %d would wait\n", p.Placed, more, p.Waiting)
	// The nodes are in the order in which they were chosen.
	members := 0
	for i, n := range p.Nodes {
		if i < linesOfPlan {
			fmt.Fprintf(a.Stdout, "  %s: %d (%s)\n", term.Clean(n.Node), n.Members, term.Clean(n.Terms))
		} else {
			members += n.Members
		}
	}
	if members > 0 {
		fmt.Fprintf(a.Stdout, "  and %d on nodes chosen after these\n", members)
	}
	printEvictions(a, p)
	if p.Why != "" {
		fmt.Fprintf(a.Stdout, "  %d wait: %s\n", p.Waiting, term.Clean(p.Why))
	}
	if p.Placed+p.Waiting == 0 {
		// The members that are placed stay where they are, so there is nothing to explain.
		return
	}
	for _, line := range p.Text {
		fmt.Fprintln(a.Stdout, term.Clean(line))
	}
}

// printChange prints what would become of the job that has the name: nothing if there is none.
func printChange(a *cli.App, p *api.JobPlan, name string) {
	switch c := p.Change; {
	case p.Unchanged:
		fmt.Fprintf(a.Stdout, "job %s is at version %d and says so already: nothing would change\n", term.Clean(name), p.Version)
	case c != nil:
		fmt.Fprintf(a.Stdout, "job %s is at version %d and would be at %d\n", term.Clean(name), c.From, p.Version)
		// How many at a time is the rollout's pace.
		if c.Members > 0 {
			fmt.Fprintf(a.Stdout, "  %d of its members are outdated and would be replaced, %d at a time\n", c.Members, c.AtOnce)
		}
		// A submission with --replace or with fewer members stops some at once.
		for i, s := range c.Stops {
			if i == shownStops {
				fmt.Fprintf(a.Stdout, "  and %d more would be stopped now\n", c.Stopped-i)
				break
			}
			fmt.Fprintf(a.Stdout, "  member %d would be stopped now: %s\n", s.Member, term.Clean(s.Why))
		}
	}
}

// printEvictions prints which allocations would be preempted, by node, with the terms by which they
// were chosen.
func printEvictions(a *cli.App, p *api.JobPlan) {
	// The server names the nodes of the first hundred at most; the others are counted.
	left := len(p.GiveWay)
	for i, v := range p.Evictions {
		if i == linesOfPlan {
			break
		}
		left -= len(v.Allocs)
		fmt.Fprintf(a.Stdout, "  on %s %s would be preempted (%s)\n", term.Clean(v.Node), term.Clean(strings.Join(v.Allocs, ", ")), term.Clean(v.Terms))
	}
	if left > 0 {
		fmt.Fprintf(a.Stdout, "  and %d more allocations would be preempted\n", left)
	}
}
