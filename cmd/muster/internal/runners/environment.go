package runners

import (
	"cmp"
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
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
	"github.com/musterhq/muster/internal/specfile"
)

// envCommand makes muster env, with all that is below it.
func envCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "env", Short: "Manage environments", Long: "Environments are templates for runners, some of which are kept warm.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(envApplyCommand(a), envListCommand(a), envShowCommand(a), envDeleteCommand(a))
	return c
}

// envName takes NAMESPACE/NAME apart. Without a namespace in it that of --namespace counts, and
// then the default one. It checks nothing: the server says what is wrong with a name.
func envName(a *cli.App, s string) (namespace, name string) {
	def := a.Namespace
	def = cmp.Or(def, string(muster.DefaultNamespace))
	return api.SplitName(s, def)
}

// envHint adds to an error about an environment that does not exist where to look for them.
func envHint(err error) error {
	if client.IsNotFound(err) {
		return cli.WithHint(err, "`muster env list` shows the environments")
	}
	return err
}

// envApplyCommand makes muster env apply. A file with the same content changes nothing and is no
// error, so a script may apply its files each time.
func envApplyCommand(a *cli.App) *cobra.Command {
	var ifVersion uint64
	var c *cobra.Command
	c = a.Command("apply FILE", "Make an environment from a file, or change it", `The file is YAML or JSON; - is stdin. Files that its inputs name are uploaded first. A change of how a runner runs makes a new version: warm runners are replaced one by one, claimed ones keep running. A change of the number of warm runners alone does not.`, cobra.ExactArgs(1), func(ctx context.Context, args []string) error {
		// The file is read and checked before a server is looked for.
		spec, err := specfile.EnvironmentAt(args[0], a.Stdin)
		if err != nil {
			return err
		}
		// The namespace is part of the name, and must be known before anything is uploaded.
		if err := a.IntoNamespace(&spec.Namespace, "environment"); err != nil {
			return err
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		// Inputs of an environment are those of a job, and are uploaded like them.
		files := &api.JobSpec{Template: api.Template{Inputs: spec.Inputs}}
		if err := transfer.UploadInputs(ctx, cl, files, cli.FolderOf(args[0]), term.NewScreen(a.Stdout, a.Stderr)); err != nil {
			return err
		}
		// The inputs have digests now in place of names of files here.
		spec.Inputs = files.Inputs
		s := api.EnvironmentSetting{Spec: *spec}
		// 0 has a meaning of its own: the environment must not exist.
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
		// The name is printed all the same: it is what a script reads.
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

// envListCommand makes muster env list. Of an environment that keeps no runners warm WARM is 0/0,
// which says that it is meant so.
func envListCommand(a *cli.App) *cobra.Command {
	c := a.ClientCommand("list", "List environments", "", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		// A program gets an empty list rather than null.
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

// envNote is what is most worth knowing of an environment: what failed if it is tried again, then
// that too few runners are warm, then why it wants as many as it does. There is one column for it.
func envNote(e *api.Environment) string {
	switch {
	case e.RetryAt != nil && e.Failure != "":
		return e.Failure
	case e.Alert != nil:
		return "too few are warm"
	}
	return e.Why
}

// envShowCommand makes muster env show. The answer says how many runners it wants warm, and why:
// that is what people ask when one has to wait.
func envShowCommand(a *cli.App) *cobra.Command {
	c := a.ClientCommand("show NAME", "Show an environment: its runners, how many it wants warm, and why", "", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		ns, name := envName(a, args[0])
		e, err := cl.Environment(ctx, ns, name)
		if err != nil {
			return envHint(err)
		}
		if a.JSON {
			return a.PrintJSON(e)
		}
		printEnvironment(a, e)
		return nil
	})
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}

// printEnvironment prints an environment: what its runners are, how many there are and are wanted,
// and what is wrong with it. Lines that would say nothing are left out.
func printEnvironment(a *cli.App, e *api.Environment) {
	what := e.Spec.Image
	// Without an image its runners are processes of their nodes.
	what = cmp.Or(what, "a process of its node")
	// The names are padded by hand: the widest is known.
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
	// Claimed runners of an earlier version live on; warm ones are replaced one by one.
	if e.Outdated > 0 {
		say("outdated", "%s of an earlier version", muster.Counted(e.Outdated, "warm runner"))
	}
	// The rest are lines that most environments do not have.
	if e.Waits != "" {
		say("waits", "%s without a place: %s", muster.Counted(e.Unplaced, "runner"), e.Waits)
	}
	if e.Failure != "" {
		say("failure", "%s", e.Failure)
	}
	// After a failure no runner is started for a while.
	if e.RetryAt != nil {
		say("retry", "at %s", e.RetryAt.Local().Format(time.TimeOnly))
	}
	// Too few for long is what an operator should look at.
	if e.Alert != nil {
		say("alert", "too few warm since %s", e.Alert.Local().Format(time.TimeOnly))
	}
}

// demandsOf is what an environment's runners need beside image and command; "" if nothing.
func demandsOf(s *api.EnvironmentSpec) string {
	var all []string
	if s.Isolation != "" {
		all = append(all, "isolation "+s.Isolation)
	}
	if s.Runtime != "" {
		all = append(all, "runtime "+s.Runtime)
	}
	// A runner is warm when this command says so, and not when it has started.
	if s.Ready != nil {
		all = append(all, "ready when "+term.ShellWords(s.Ready.Command)+" exits with 0")
	}
	if s.Frozen {
		all = append(all, "frozen while warm")
	}
	return strings.Join(all, ", ")
}

// envDeleteCommand makes muster env delete. Claimed runners are somebody's work, so they go only if
// that is asked for.
func envDeleteCommand(a *cli.App) *cobra.Command {
	claimed := false
	c := a.ClientCommand("delete NAME", "Delete an environment", "Unclaimed runners are destroyed at once. Claimed ones keep running until they are released or expire.", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		ns, name := envName(a, args[0])
		return envHint(cl.DeleteEnvironment(ctx, ns, name, claimed))
	})
	c.Flags().BoolVar(&claimed, "claimed", false, "destroy claimed runners as well")
	a.NamespaceFlag(c, "namespace of the environment")
	return c
}
