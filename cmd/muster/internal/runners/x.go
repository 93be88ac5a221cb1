package runners

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/inside"
)

// xCommand makes muster x: a claim, an execution and a release. It has work of its own in place of
// that of App.Command, because signals are for the command that runs inside. It has the flags of
// claim and some of exec; the rest of exec makes no sense for a runner that ends with the command.
func xCommand(a *cli.App) *cobra.Command {
	f := &claimFlags{}
	x := &inside.Executor{App: a, Stdin: true}
	c := a.Command("x [flags] ENVIRONMENT [--] COMMAND [ARGUMENT...]", "Claim a runner, run a command in it, release it", `The command has your stdin, stdout and stderr, and its exit code is yours:

  muster x python -- python3 script.py < in > out

Exit codes as of muster exec.`, cobra.MinimumNArgs(2), nil)
	f.add(c)
	// What follows the command belongs to the command.
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&x.TTY, "tty", "t", false, "allocate a terminal")
	c.Flags().StringVarP(&x.User, "user", "u", "", "user in a container (default: that of the environment)")
	c.Flags().StringVarP(&x.Workdir, "workdir", "w", "", "working directory (default: that of the environment)")
	c.Flags().StringArrayVarP(&x.Env, "env", "e", nil, "environment variable NAME=VALUE, or NAME to pass your own; may be repeated")
	c.Flags().StringVar(&x.Timeout, "timeout", "", "stop it after this time, for example 10m")
	a.NamespaceFlag(c, "namespace of the environment")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		// Flags may stand behind the environment's name, as with exec.
		args, err := inside.ExecArgs(cmd, args)
		if err != nil {
			return err
		}
		q, err := f.request(a, args[0])
		if err != nil {
			return err
		}
		// Whoever lists runners sees what this one is claimed for.
		q.Note = "muster x"
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		// Each x is a claim of its own, so the client draws the key.
		got, err := cl.Claim(ctx, q, "")
		if err != nil {
			return claimHint(err, &q)
		}
		// However it ends, the runner is released, also when a signal has ended the context. If
		// that fails, the claim's expiry does it.
		defer func() {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
			defer cancel()
			if err := cl.Release(end, muster.AllocID(got.Runner)); err != nil && !client.IsGone(err) {
				fmt.Fprintf(a.Stderr, "muster: runner %s was not released; it is destroyed when its claim expires: %v\n", got.Runner, err)
			}
		}()
		return x.Run(ctx, append([]string{got.Runner}, args[1:]...))
	}
	return c
}

// releaseTime bounds how long muster x tries to release its runner.
const releaseTime = 10 * time.Second
