package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/specfile"
)

func (a *app) validateCommand() *cobra.Command {
	var local, plan bool
	c := a.command("validate FILE", "Check a job file, and whether the job fits", `The file is read as by submit; the server is asked whether one member fits any of its
offerings. Nothing is submitted or uploaded. With --local the server is not asked. With --plan it is
asked also where members would go now, by what each node was chosen, who would give way, and what the others would wait for.
Exit code 0: it could be submitted and fits; 1: it fits nowhere; 2: the file is wrong.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		spec, err := specfile.JobAt(args[0], a.stdin)
		if err != nil {
			return err
		}
		if err := a.intoNamespace(spec); err != nil {
			return err
		}
		// Nothing is uploaded, but the files must be there.
		if _, err := digest(spec, folderOf(args[0])); err != nil {
			return usage(fmt.Errorf("%s: %w", args[0], err))
		}
		out := &api.JobValidation{Spec: *spec, Fits: true}
		if !local {
			cl, err := a.connect()
			if err == nil {
				ask := cl.Validate
				if plan {
					ask = cl.ValidatePlan
				}
				out, err = ask(ctx, api.JobSubmission{Spec: *spec})
			}
			if err != nil {
				return fmt.Errorf("%s is well-formed, but its fit is not known: %w", args[0], err)
			}
		}
		if a.json {
			if err := a.printJSON(out); err != nil {
				return err
			}
		}
		switch {
		case len(out.Problems) > 0:
			return usage(&api.Problem{Title: args[0] + " would be refused", Errors: out.Problems})
		case !out.Fits:
			return &exit{exitFailed, fmt.Errorf("%s is well-formed, but fits nowhere: %s", args[0], out.Why)}
		case a.json:
			return nil
		}
		fmt.Fprintf(a.stdout, "%s is well-formed%s\n", args[0], clean(suffixIf(out.Why != "", "; "+out.Why)))
		if out.Plan != nil {
			a.printPlan(out.Plan)
		}
		return nil
	})
	c.Flags().BoolVar(&local, "local", false, "do not ask the server")
	c.Flags().BoolVar(&plan, "plan", false, "tell also what submitting it would do now")
	c.MarkFlagsMutuallyExclusive("local", "plan")
	a.namespaceFlag(c, "namespace of the job, if the file names none")
	return c
}

func (a *app) printPlan(p *api.JobPlan) {
	fmt.Fprintf(a.stdout, "now %d would be placed, %d would wait\n", p.Placed, p.Waiting)
	for _, n := range p.Nodes {
		fmt.Fprintf(a.stdout, "  %s: %d (%s)\n", clean(n.Node), n.Members, clean(n.Terms))
	}
	for _, id := range p.GiveWay {
		fmt.Fprintf(a.stdout, "  allocation %s would give way\n", clean(id))
	}
	if p.Why != "" {
		fmt.Fprintf(a.stdout, "  %s\n", clean(p.Why))
	}
}
