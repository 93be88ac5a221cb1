package runners

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// claimFlags are the flags of claim, extend and x, as the user wrote them. Durations stay text
// until request reads them: "" means that the environment decides. Note and key are of claim alone:
// x and extend have none.
type claimFlags struct{ ttl, idle, wait, note, key string }

// add adds those that claim and x have. Without a flag the environment's own limits hold.
func (f *claimFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.ttl, "ttl", "", "the claim expires after this time, for example 10m; 0s: no limit (default: as the environment says)")
	c.Flags().StringVar(&f.idle, "idle", "", "the claim expires when its runner was not used for this long; 0s: no limit (default: as the environment says)")
	c.Flags().StringVar(&f.wait, "wait", "30s", "how long to wait for a runner if none is warm; 0s: do not wait")
}

// request is the claim that the flags ask for. A limit that was not given is nil, which is not the
// same as 0s: that lifts it. An error names the flag.
func (f *claimFlags) request(a *cli.App, env string) (api.ClaimRequest, error) {
	q := api.ClaimRequest{Note: f.note}
	q.Namespace, q.Environment = envName(a, env)
	for _, t := range []struct {
		flag, value string
		to          **api.Duration
	}{{"ttl", f.ttl, &q.TTL}, {"idle", f.idle, &q.Idle}} {
		if t.value == "" {
			continue
		}
		d, err := api.ParseDuration(t.value)
		if err != nil {
			return q, cli.Usage(fmt.Errorf("--%s: %w", t.flag, err))
		}
		*t.to = &d
	}
	var err error
	if q.Wait, err = api.ParseDuration(f.wait); err != nil {
		return q, cli.Usage(fmt.Errorf("--wait: %w", err))
	}
	return q, nil
}

// claimHint adds to an error of a claim what to do about it: most often no runner is warm yet, and
// a longer wait or a look at the environment helps.
func claimHint(err error, q *api.ClaimRequest) error {
	if client.IsNoneWarm(err) {
		return cli.WithHint(err, fmt.Sprintf("`muster env show %s` says what its runners are at; --wait waits longer", cli.EnvironmentName(q.Namespace, q.Environment)))
	}
	return envHint(err)
}

// claimCommand makes muster claim. It prints the runner's id alone, so that a script can keep it.
// The secret is printed with --json only: on a screen it would be seen by others.
func claimCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{}
	c := a.Command("claim ENVIRONMENT", "Claim a warm runner", `Print the id of a runner that is yours until it is released or its claim expires:

  muster claim python --ttl 10m --idle 60s
  muster exec RUNNER -- python3 -c 'print(1+1)'
  muster release RUNNER

With --json also the claim's secret: a token for this runner only.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		q, err := f.request(a, args[0])
		if err != nil {
			return err
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		got, err := cl.Claim(ctx, q, f.key)
		if err != nil {
			return claimHint(err, &q)
		}
		if a.JSON {
			return a.PrintJSON(got)
		}
		_, err = fmt.Fprintln(a.Stdout, got.Runner)
		return err
	})
	f.add(c)
	c.Flags().StringVar(&f.note, "note", "", "a note that is shown with the claim")
	// A script that is started again asks for the same claim by its key.
	c.Flags().StringVar(&f.key, "key", "", "idempotency key, new for each claim: a repeated request with it returns the same claim")
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}

// releaseCommand makes muster release. It stops at the first runner that it cannot release: what
// follows would most likely fail for the same reason.
func releaseCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("release RUNNER...", "Release runners", "Ends their claims and destroys them.", cobra.MinimumNArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// Several runners are one command line, because a script has them in a list.
		for _, id := range args {
			if err := cl.Release(ctx, muster.AllocID(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

// extendCommand makes muster extend. Both limits count from now, so a script that works longer
// extends as often as it likes.
func extendCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{wait: "0s"}
	c := a.Command("extend RUNNER", "Extend the claim of a runner", "", cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		// Only the durations are used: the environment's name is none.
		q, err := f.request(a, "x")
		if err != nil {
			return err
		}
		// An extension that extends nothing is a mistake.
		if q.TTL == nil && q.Idle == nil {
			return cli.Usage(fmt.Errorf("say how long: --ttl, --idle, or both"))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		got, err := cl.Extend(ctx, muster.AllocID(args[0]), api.ClaimExtension{TTL: q.TTL, Idle: q.Idle})
		// There is nothing to say but when it expires, which the user has just chosen.
		if err != nil || !a.JSON {
			return err
		}
		return a.PrintJSON(got)
	})
	c.Flags().StringVar(&f.ttl, "ttl", "", "the claim expires this long from now, for example 10m; 0s: no limit")
	c.Flags().StringVar(&f.idle, "idle", "", "the claim expires when its runner was not used for this long; 0s: no limit")
	return c
}

// runnerCommand makes muster runner and muster runner list.
func runnerCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "runner", Short: "List runners", Long: "Runners are allocations of environments: starting, warm, claimed or gone.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	var q client.RunnerQuery
	state := ""
	list := a.ClientCommand("list [ENVIRONMENT]", "List runners", "Lists runners that are gone only with --state gone.", cobra.MaximumNArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// Without an environment it lists the runners of all, or of those in --namespace.
		q.Namespace, q.State = a.Namespace, muster.RunnerState(state)
		if len(args) == 1 {
			q.Namespace, q.Environment = envName(a, args[0])
		}
		// A program gets an empty list rather than null.
		all := []api.Runner{}
		var rows [][]string
		for r, err := range cl.Runners(ctx, q) {
			if err != nil {
				return envHint(err)
			}
			all = append(all, r)
			// Only a claimed runner has a claim, and only one that was used has a time of that.
			claim, used := "-", "-"
			if r.Claim != nil {
				claim = strings.TrimSpace(r.Claim.ID + " " + r.Claim.Note)
				if r.Claim.Used != nil {
					used = term.Ago(r.Claim.Used, time.Now())
				}
			}
			rows = append(rows, []string{r.ID, cli.EnvironmentName(r.Namespace, r.Environment), fmt.Sprint(r.Version), r.State, r.Node, term.Ago(&r.Placed, time.Now()), claim, used, r.Why})
		}
		if a.JSON {
			return a.PrintJSON(api.RunnerList{Runners: all})
		}
		a.PrintTable([]string{"RUNNER", "ENVIRONMENT", "VERSION", "STATE", "NODE", "AGE", "CLAIM", "USED", "REASON"}, rows)
		return nil
	})
	list.Flags().StringVar(&state, "state", "", "only in this state: starting, warm, claimed or gone")
	a.NamespaceFlag(list, "namespace of the environment")
	c.AddCommand(list)
	return c
}
