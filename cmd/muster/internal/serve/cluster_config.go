package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/specfile"
)

// configShowCommand makes muster config show. What it prints on stdout is a file that muster config
// apply reads.
func configShowCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("show", "Show the cluster's configuration that is in force", `Print the configuration in force as a file: pools, providers, shares, policies, retention, quotas and the scheduler. It is the same on every server. Credentials, paths of files and what needs a restart are not in it: each server has them in its own file. muster config apply reads what this prints.

    muster config show > cluster.yaml
    muster config apply cluster.yaml`, cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		c, err := cl.AppliedConfig(ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(c)
		}
		text, err := specfile.YAML(c.Config)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.Stdout, "# %s\n%s", appliedLine(c), text); err != nil {
			return err
		}
		if n := len(c.Differs); n > 0 {
			fmt.Fprintf(a.Stderr, "muster: the file of server %s differs in %s; `muster config diff` shows them\n", c.Self, muster.Counted(n, "field"))
		}
		if c.Unknown != "" {
			fmt.Fprintf(a.Stderr, "muster: server %s does not know the field %s; upgrade it\n", c.Self, c.Unknown)
		}
		return nil
	})
}

// appliedLine says which configuration is in force, and since when.
func appliedLine(c *api.AppliedConfig) string {
	how := map[string]string{"first": "the first configuration", "start": "the server's start", "reload": "a reload", "request": "muster config apply"}[c.How]
	if how == "" {
		how = c.How
	}
	return fmt.Sprintf("version %d, applied %s by %s on server %s", c.Version, c.Applied.UTC().Format(time.RFC3339), how, c.Server)
}

// configDiffCommand makes muster config diff.
func configDiffCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("diff [FILE]", "Show how a file differs from the configuration in force", `Without FILE, compare the file of the server that answers, as it read it last. Choose the server with --addr. A server whose file differs does not apply it by itself when it begins to lead: see docs/operations.md.
With FILE, show what muster config apply FILE would change; - is stdin. Exit code 0 in both cases, unless FILE is invalid or would be refused.`, cobra.MaximumNArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		if len(args) == 0 {
			c, err := cl.AppliedConfig(ctx)
			if err != nil {
				return err
			}
			if a.JSON {
				return a.PrintJSON(c)
			}
			return printChanges(a, fmt.Sprintf("The file of server %s differs from the configuration in force (%s):", c.Self, appliedLine(c)),
				fmt.Sprintf("The file of server %s is the configuration in force (%s).", c.Self, appliedLine(c)), c.Differs)
		}
		part, err := clusterPart(a, args[0])
		if err != nil {
			return err
		}
		out, err := cl.ApplyConfig(ctx, api.ConfigApply{Config: *part, DryRun: true})
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(out)
		}
		return printChanges(a, fmt.Sprintf("Applying %s to version %d would change:", args[0], out.Version), fmt.Sprintf("%s is the configuration in force, version %d.", args[0], out.Version), out.Changes)
	})
}

// configApplyCommand makes muster config apply.
func configApplyCommand(a *cli.App) *cobra.Command {
	version := uint64(0)
	c := a.ClientCommand("apply FILE", "Apply a configuration to the cluster", `Put the cluster's part of FILE in force on all servers: pools, providers, shares, policies, retention, quotas and the scheduler. - is stdin. The rest of FILE, such as credentials, paths of files and what needs a restart, is not sent: each server takes it from its own file. If the configuration needs something new of it, as a provider does that is added, put that into the files of all servers first, and reload them (SIGHUP).
Pools that FILE leaves out are drained. muster config diff FILE shows beforehand what would change. The configuration counts until another one is applied; a server whose file differs says so.`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		part, err := clusterPart(a, args[0])
		if err != nil {
			return err
		}
		q := api.ConfigApply{Config: *part}
		// Versions begin at 1.
		if version != 0 {
			q.IfVersion = &version
		}
		out, err := cl.ApplyConfig(ctx, q)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(out)
		}
		return printChanges(a, fmt.Sprintf("Version %d is in force. Changed:", out.Version), fmt.Sprintf("Nothing has changed: version %d is in force.", out.Version), out.Changes)
	})
	c.Flags().Uint64Var(&version, "if-version", 0, "apply it only if the configuration in force has this version")
	return c
}

// clusterPart reads the cluster's part of a file. Nothing else of it leaves this program.
func clusterPart(a *cli.App, file string) (*api.ServerConfig, error) {
	c, err := specfile.ClusterConfigAt(file, a.Stdin)
	if err != nil {
		return nil, err
	}
	return config.Cluster(c), nil
}

// printChanges prints changes with their warnings below a line that says what they are, or another
// line if there are none.
func printChanges(a *cli.App, some, none string, changes []api.ConfigChange) error {
	lines := []string{some}
	if len(changes) == 0 {
		lines[0] = none
	}
	return printLines(a, append(lines, changeLines(changes)...))
}

// changeLines are changes, each with its warning below it.
func changeLines(changes []api.ConfigChange) (lines []string) {
	for _, c := range changes {
		lines = append(lines, "  "+c.String())
		if c.Warning != "" {
			lines = append(lines, "    WARNING: "+c.Warning)
		}
	}
	return lines
}

// printLines prints lines.
func printLines(a *cli.App, lines []string) error {
	for _, l := range lines {
		if _, err := fmt.Fprintln(a.Stdout, l); err != nil {
			return err
		}
	}
	return nil
}
