package operators

import (
	"context"
	"errors"
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

// providerCommand makes muster provider, with what is below it. Providers are made by the server's
// configuration.
func providerCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "provider", Short: "Test the providers of nodes", Long: "Test the providers of nodes.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(providerCheckCommand(a))
	return c
}

// providerCheckCommand makes muster provider check. The server does the work and reports each step;
// the whole may take minutes, so steps are printed as they come. It costs money, which the help
// text says before anything else.
func providerCheckCommand(a *cli.App) *cobra.Command {
	offering, timeout, dry := "", 10*time.Minute, false
	c := a.Command("check NAME [-- COMMAND...]", "Test a provider with a real instance", `Launches one instance, waits for its agent, runs one command there (uname -a), and destroys the instance in any case. You pay for the instance. With --dry-run nothing is launched: it prints what the configuration stands for, as image, subnets and offerings with prices, and what is missing. Exit code 0: every step succeeded.`,
		cobra.MinimumNArgs(1), func(ctx context.Context, args []string) error {
			// The server would take 0 for its own default, which nobody asks for by writing 0.
			if timeout <= 0 {
				return cli.Usage(fmt.Errorf("--timeout is %s; give a time above 0s", timeout))
			}
			if dry && (offering != "" || len(args) > 1) {
				return cli.Usage(errors.New("--dry-run launches nothing, so it goes with neither --offering nor a command"))
			}
			cl, err := a.Connect()
			if err != nil {
				return err
			}
			err = cl.CheckProvider(ctx, muster.ProviderName(args[0]), api.ProviderCheck{Offering: offering, Command: args[1:], DryRun: dry, Timeout: api.Duration(timeout)}, func(p api.CheckProgress) {
				// The text is the provider's own, and may be anything.
				if !a.JSON {
					fmt.Fprintf(a.Stdout, "%-8s %s\n", p.Step, term.OneLine(p.Text))
				}
			})
			// With --json only the end is printed, as one object that says whether it went well.
			result := api.CheckProgress{Step: "done", Text: "everything went well", OK: true}
			var p *api.Problem
			if err != nil {
				// That the server cannot be asked says nothing of the provider.
				if !errors.As(err, &p) || client.IsAuth(err) {
					return err
				}
				result = api.CheckProgress{Step: "done", Text: p.Detail, Problem: p}
			}
			if a.JSON {
				if e := a.PrintJSON(result); e != nil {
					return e
				}
			}
			if err != nil {
				// Whatever kind of fault it is: the provider does not work. The exit code is 1, not
				// that of the fault.

				return cli.Failure(fmt.Errorf("provider %s: %s", args[0], strings.TrimPrefix(p.Detail, "provider "+args[0]+": ")))
			}
			switch {
			case a.JSON:
			case dry:
				fmt.Fprintf(a.Stdout, "provider %s: nothing is missing; `muster provider check %s` tries it with an instance\n", args[0], args[0])
			default:
				fmt.Fprintf(a.Stdout, "provider %s works\n", args[0])
			}
			return nil
		})
	c.Flags().BoolVar(&dry, "dry-run", false, "launch nothing: print what the configuration stands for, and what is missing")
	c.Flags().StringVar(&offering, "offering", "", "which offering to launch (default: the cheapest that is available)")
	cli.DurationVar(c.Flags(), &timeout, "timeout", timeout, "time limit for launch, boot and command together")
	return c
}
