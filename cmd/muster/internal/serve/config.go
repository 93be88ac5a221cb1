package serve

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/specfile"
)

// configCommand makes muster config with all that is below it, and muster config check. The file is what is checked. A server
// that cannot be asked is no error: what would change is then unknown, and that is said.
func configCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Check a server's configuration, and manage the cluster's", Long: "Check a server's configuration, and manage the cluster's.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	file := ""
	check := a.Command("check -c FILE", "Check a server's configuration", `Read the file as muster server does, and compare it with the configuration of the server that runs on its data directory (or at --addr).
Shows what a reload (SIGHUP) would change, which changes need a restart, and whether the server would refuse them. Secrets are not compared.
With --json all of it is printed, the file with all defaults.
Exit code 0: the file is valid; 2: it is not.`, cobra.NoArgs, func(ctx context.Context, _ []string) error {
		if file == "" {
			return cli.Usage(errors.New("which file? give it with -c"))
		}
		cfg, err := specfile.ConfigAt(file)
		if err != nil {
			return err
		}
		checked := config.Check{Config: cfg}
		if err := compare(ctx, a, &checked); err != nil {
			checked.Why = err.Error()
			if errors.Is(err, locate.ErrUnknown) && a.Given.DataDir == "" {
				// Nothing was said of a server, so none is expected to run: a new configuration is
				// checked most often.
				checked.Why = fmt.Sprintf("no server has run in %s yet; `muster server -c %s` starts one", cfg.DataDir, file)
			}
		}
		if a.JSON {
			// Answers for programs end up in logs, so secrets are not printed.
			checked.Config = config.Masked(cfg)
			return a.PrintJSON(checked)
		}
		return printCheck(a, file, &checked)
	})
	check.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	c.AddCommand(check, configShowCommand(a), configDiffCommand(a), configApplyCommand(a))
	return c
}

// compare finds out what would change on the running server: the one on the file's data directory,
// unless another one was named. An error says why that is not known. The server is asked once and
// not waited for: the file is the point, not the server.
func compare(ctx context.Context, a *cli.App, c *config.Check) error {
	given := a.Given
	// The environment is not looked at: it may name a server that has nothing to do with the file.
	if given.Address == "" && given.DataDir == "" {
		given.DataDir = c.Config.DataDir
	}
	at, err := locate.Find(given)
	if err != nil {
		return err
	}
	cl, err := client.New(client.Config{Address: at.Address, Token: at.Token, RetryFor: -1})
	if err != nil {
		return err
	}
	running, err := cl.Config(ctx)
	if err != nil {
		return err
	}
	c.Server = cl.Address()
	// The server knows its directory as an absolute path, and prints secrets as stars.

	next := *c.Config
	if next.DataDir, err = filepath.Abs(next.DataDir); err != nil {
		return err
	}
	if c.Changes, err = config.Changes(running, &next); err != nil {
		return err
	}
	if c.Refused, err = stranded(ctx, cl, running, &next); err != nil {
		// What would change is known all the same.
		c.Unsure = fmt.Sprintf("whether the server would reload this file is not known: %v", err)
	}
	return nil
}

// stranded says which providers are removed and still have nodes; "" if none. A server refuses to
// reload such a file, because nobody could destroy those nodes any more. It is found out here with
// the same rule, so that the operator learns of it before the reload.
func stranded(ctx context.Context, cl *client.Client, running, next *api.ServerConfig) (string, error) {
	var out []string
	for i := range running.Providers {
		name := running.Providers[i].Name
		if !slices.ContainsFunc(next.Providers, func(p api.ProviderSpec) bool { return p.Name == name }) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "", nil
	}
	// Nodes that are gone are kept for a while, and need no provider any more.
	nodes := map[string]int{}
	for n, err := range cl.AllNodes(ctx, client.NodeQuery{}) {
		if err != nil {
			return "", err
		}
		if n.Stage != string(muster.NodeGone) {
			nodes[n.Provider]++
		}
	}
	var why []string
	for _, name := range out {
		if nodes[name] > 0 {
			why = append(why, fmt.Sprintf("provider %s is removed and still has nodes (%d); remove its pools first, and the provider when the nodes are gone", name, nodes[name]))
		}
	}
	return strings.Join(why, "; "), nil
}

// printCheck prints what a check has found: that the file is right, what a reload would change, and
// what a server would refuse.
func printCheck(a *cli.App, file string, c *config.Check) error {
	// What is right is said first, then what would change, then what stands against it.
	lines := []string{fmt.Sprintf("%s is right: %s, %s, listening on %s", file, muster.Counted(len(c.Config.Providers), "provider"), muster.Counted(len(c.Config.Pools), "pool"), c.Config.Listen)}
	switch {
	case c.Why != "":
		lines = append(lines, "Changes are unknown: "+c.Why)
	case len(c.Changes) == 0:
		lines = append(lines, fmt.Sprintf("The server at %s has the same configuration.", c.Server))
	default:
		lines = append(lines, fmt.Sprintf("A reload of the server at %s would change:", c.Server))
	}
	lines = append(lines, changeLines(c.Changes)...)
	if c.Unsure != "" {
		lines = append(lines, "  "+c.Unsure)
	}
	if c.Refused != "" {
		lines = append(lines, "  REFUSED: the server would not reload this file: "+c.Refused)
	}
	return printLines(a, lines)
}
