package main

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
	"github.com/musterhq/muster/cmd/muster/internal/inside"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
	"github.com/musterhq/muster/internal/specfile"
)

func envCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "env", Short: "Set environments, and see them", Long: "Environments are templates of which runners are kept warm.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(envApplyCommand(a), envListCommand(a), envShowCommand(a), envDeleteCommand(a))
	return c
}

// envName parts NAMESPACE/NAME; the flag's namespace counts where none is given.
func envName(a *cli.App, s string) (namespace, name string) {
	def := a.Namespace
	if def == "" {
		def = string(muster.DefaultNamespace)
	}
	return api.SplitName(s, def)
}

func envHint(err error) error {
	if client.IsNotFound(err) {
		return cli.WithHint(err, "`muster env list` shows the environments")
	}
	return err
}

func envApplyCommand(a *cli.App) *cobra.Command {
	var ifVersion uint64
	var c *cobra.Command
	c = a.Command("apply FILE", "Make an environment from a file, or change it", `The file is YAML or JSON; - is stdin. Files that its inputs name are uploaded first. What decides
how a runner runs makes a new version: warm runners are replaced one by one, claimed ones live on. Another number of warm
runners alone does not.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		spec, err := specfile.EnvironmentAt(args[0], a.Stdin)
		if err != nil {
			return err
		}
		if err := a.IntoNamespace(&spec.Namespace, "environment"); err != nil {
			return err
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		files := &api.JobSpec{Template: api.Template{Inputs: spec.Inputs}}
		if err := transfer.UploadInputs(ctx, cl, files, cli.FolderOf(args[0])); err != nil {
			return err
		}
		spec.Inputs = files.Inputs
		s := api.EnvironmentSetting{Spec: *spec}
		if c.Flags().Changed("if-version") {
			s.IfVersion = &ifVersion
		}
		done, err := cl.SetEnvironment(ctx, s)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(done)
		}
		name := cli.EnvironmentName(done.Namespace, done.Name)
		if done.Unchanged {
			fmt.Fprintf(a.Stderr, "muster: environment %s is there with the same content (version %d); nothing was changed\n", name, done.Version)
		}
		_, err = fmt.Fprintln(a.Stdout, name)
		return err
	})
	c.Flags().Uint64Var(&ifVersion, "if-version", 0, "only if the environment is at this version; 0: only if it does not exist")
	a.NamespaceFlag(c, "namespace of the environment, if the file names none")
	return c
}

func envListCommand(a *cli.App) *cobra.Command {
	c := a.Command("list", "List environments", "", cobra.NoArgs, func(ctx context.Context, _ []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		all := []api.Environment{}
		var rows [][]string
		for e, err := range cl.Environments(ctx, a.Namespace) {
			if err != nil {
				return err
			}
			all = append(all, e)
			rows = append(rows, []string{cli.EnvironmentName(e.Namespace, e.Name), e.Stage, fmt.Sprintf("%d/%d", e.Runners.Warm, e.Wanted),
				fmt.Sprint(e.Runners.Starting), fmt.Sprint(e.Runners.Claimed), fmt.Sprint(e.Waiting), fmt.Sprint(e.Claims), envNote(&e)})
		}
		if a.JSON {
			return a.PrintJSON(api.EnvironmentList{Environments: all})
		}
		a.PrintTable([]string{"ENVIRONMENT", "STAGE", "WARM", "STARTING", "CLAIMED", "WAITING", "CLAIMS", "REASON"}, rows)
		return nil
	})
	a.NamespaceFlag(c, "only of this namespace")
	return c
}

// envNote is what is most worth knowing.
func envNote(e *api.Environment) string {
	switch {
	case e.RetryAt != nil && e.Failure != "":
		return e.Failure
	case e.Alert != nil:
		return "too few are warm"
	}
	return e.Why
}

func envShowCommand(a *cli.App) *cobra.Command {
	c := a.Command("show NAME", "Show an environment: its runners, how many it wants warm, and why", "", cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		ns, name := envName(a, args[0])
		e, err := cl.Environment(ctx, ns, name)
		if err != nil {
			return envHint(err)
		}
		if a.JSON {
			return a.PrintJSON(e)
		}
		what := e.Spec.Image
		if what == "" {
			what = "a process of its node"
		}
		say := func(name, format string, args ...any) {
			fmt.Fprintf(a.Stdout, "%-12s %s\n", name, fmt.Sprintf(format, args...))
		}
		say("environment", "%s, version %d, %s", cli.EnvironmentName(e.Namespace, e.Name), e.Version, e.Stage)
		say("image", "%s", what)
		say("command", "%s", term.ShellWords(e.Spec.Command))
		if demands := demandsOf(e.Spec); demands != "" {
			say("demands", "%s", demands)
		}
		say("runners", "%d warm, %d starting, %d claimed, %d gone", e.Runners.Warm, e.Runners.Starting, e.Runners.Claimed, e.Runners.Gone)
		say("wants", "%d warm: %s", e.Wanted, e.Why)
		say("claims", "%d so far, %d wait", e.Claims, e.Waiting)
		if e.Outdated > 0 {
			say("outdated", "%s of an earlier version", muster.Counted(e.Outdated, "warm runner"))
		}
		if e.Waits != "" {
			say("waits", "%s without a place: %s", muster.Counted(e.Unplaced, "runner"), e.Waits)
		}
		if e.Failure != "" {
			say("failure", "%s", e.Failure)
		}
		if e.RetryAt != nil {
			say("retry", "at %s", e.RetryAt.Local().Format(time.TimeOnly))
		}
		if e.Alert != nil {
			say("alert", "too few warm since %s", e.Alert.Local().Format(time.TimeOnly))
		}
		return nil
	})
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}

// demandsOf is what its runners have beside image and command.
func demandsOf(s *api.EnvironmentSpec) string {
	var all []string
	if s.Isolation != "" {
		all = append(all, "isolation "+s.Isolation)
	}
	if s.Runtime != "" {
		all = append(all, "runtime "+s.Runtime)
	}
	if s.Ready != nil {
		all = append(all, "ready when "+term.ShellWords(s.Ready.Command)+" exits with 0")
	}
	if s.Frozen {
		all = append(all, "frozen while warm")
	}
	return strings.Join(all, ", ")
}

func envDeleteCommand(a *cli.App) *cobra.Command {
	claimed := false
	c := a.Command("delete NAME", "Delete an environment", "Runners that nobody has end at once. Claimed ones live on until they are given back or expire.", cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		ns, name := envName(a, args[0])
		return envHint(cl.DeleteEnvironment(ctx, ns, name, claimed))
	})
	c.Flags().BoolVar(&claimed, "claimed", false, "end claimed runners as well")
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}

// claimFlags are those of claim and x.
type claimFlags struct{ ttl, idle, wait, note, key string }

func (f *claimFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.ttl, "ttl", "", "the claim expires after so long, as 10m; 0s: never by that (default: as the environment says)")
	c.Flags().StringVar(&f.idle, "idle", "", "it expires when nothing was done with its runner for so long; 0s: never by that (default: as the environment says)")
	c.Flags().StringVar(&f.wait, "wait", "30s", "how long to wait for a runner if none is warm; 0s: not at all")
}

// request is what the flags say.
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

func claimHint(err error, q *api.ClaimRequest) error {
	if client.IsNoneWarm(err) {
		return cli.WithHint(err, fmt.Sprintf("`muster env show %s` says what its runners are at; --wait waits longer", cli.EnvironmentName(q.Namespace, q.Environment)))
	}
	return envHint(err)
}

func claimCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{}
	c := a.Command("claim ENVIRONMENT", "Claim a warm runner", `Print the id of a runner that is yours until it is released or its claim expires:

  muster claim python --ttl 10m --idle 60s
  muster exec RUNNER -- python3 -c 'print(1+1)'
  muster release RUNNER

With --json also the claim's secret, by which who has no token uses the runner, and nothing else.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
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
	c.Flags().StringVar(&f.note, "note", "", "shown with the claim: what it is for")
	c.Flags().StringVar(&f.key, "key", "", "any text that is new for each claim meant: asked for again with it, it is the same claim")
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}

func releaseCommand(a *cli.App) *cobra.Command {
	return a.Command("release RUNNER...", "Give runners back", "Their claims end, and they are destroyed.", cobra.MinimumNArgs(1), func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		for _, id := range args {
			if err := cl.Release(ctx, muster.AllocID(id)); err != nil {
				return err
			}
		}
		return nil
	})
}

func extendCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{wait: "0s"}
	c := a.Command("extend RUNNER", "Extend the claim of a runner", "", cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		q, err := f.request(a, "x")
		if err != nil {
			return err
		}
		if q.TTL == nil && q.Idle == nil {
			return cli.Usage(fmt.Errorf("say how long: --ttl, --idle, or both"))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		got, err := cl.Extend(ctx, muster.AllocID(args[0]), api.ClaimExtension{TTL: q.TTL, Idle: q.Idle})
		if err != nil || !a.JSON {
			return err
		}
		return a.PrintJSON(got)
	})
	c.Flags().StringVar(&f.ttl, "ttl", "", "the claim expires so long from now, as 10m; 0s: never by that")
	c.Flags().StringVar(&f.idle, "idle", "", "it expires when nothing was done with its runner for so long; 0s: never by that")
	return c
}

func runnerCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "runner", Short: "See runners", Long: "Runners are allocations of environments: starting, warm, claimed or gone.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	var q client.RunnerQuery
	state := ""
	list := a.Command("list [ENVIRONMENT]", "List runners", "Those that are gone with --state gone only.", cobra.MaximumNArgs(1), func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		q.Namespace, q.State = a.Namespace, muster.RunnerState(state)
		if len(args) == 1 {
			q.Namespace, q.Environment = envName(a, args[0])
		}
		all := []api.Runner{}
		var rows [][]string
		for r, err := range cl.Runners(ctx, q) {
			if err != nil {
				return envHint(err)
			}
			all = append(all, r)
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

func xCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{}
	x := &inside.Executor{App: a, Stdin: true}
	c := a.Command("x [flags] ENVIRONMENT [--] COMMAND [ARGUMENT...]", "Claim a runner, run a command in it, give it back", `The command has your stdin, stdout and stderr, and its exit code is yours:

  muster x python -- python3 script.py < in > out

Exit codes as of muster exec.`, cobra.MinimumNArgs(2), nil)
	f.add(c)
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&x.TTY, "tty", "t", false, "give the command a terminal: yours")
	c.Flags().StringVarP(&x.User, "user", "u", "", "who runs it in a container (default: as the environment says)")
	c.Flags().StringVarP(&x.Workdir, "workdir", "w", "", "where it starts (default: where the environment says)")
	c.Flags().StringArrayVarP(&x.Env, "env", "e", nil, "environment variable NAME=VALUE, or NAME to pass on your own; may be repeated")
	c.Flags().StringVar(&x.Timeout, "timeout", "", "end it when it runs longer, as 10m")
	a.NamespaceFlag(c, "namespace of the environment")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		args, err := inside.ExecArgs(cmd, args)
		if err != nil {
			return err
		}
		q, err := f.request(a, args[0])
		if err != nil {
			return err
		}
		q.Note = "muster x"
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		got, err := cl.Claim(ctx, q, "")
		if err != nil {
			return claimHint(err, &q)
		}
		// However it ends, the runner is given back.
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
			defer cancel()
			if err := cl.Release(end, muster.AllocID(got.Runner)); err != nil && !client.IsGone(err) {
				fmt.Fprintf(a.Stderr, "muster: runner %s was not given back, and goes when its claim expires: %v\n", got.Runner, err)
			}
		}()
		return x.Run(ctx, append([]string{got.Runner}, args[1:]...))
	}
	return c
}

// releaseTime bounds how long muster x tries to give its runner back.
const releaseTime = 10 * time.Second

// runnersCommands are those about environments and their runners.
func runnersCommands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{envCommand(a), claimCommand(a), releaseCommand(a), extendCommand(a), runnerCommand(a), xCommand(a)}
}
