package operators

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// serversCommand makes muster servers, with all that is below it.
func serversCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "servers", Short: "Manage the servers of a cluster", Long: "Manage the servers of a cluster (docs/servers.md).", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(serversListCommand(a), joinTokenCommand(a), serversRemoveCommand(a), transferCommand(a))
	return c
}

// serversListCommand makes muster servers list.
func serversListCommand(a *cli.App) *cobra.Command {
	stale := false
	c := a.ClientCommand("list", "List the servers of the cluster", "Shows which server leads, which vote, how far each is behind, and which log format is in force.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		l, err := cl.Servers(ctx, stale)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(l)
		}
		printServers(a, l)
		return nil
	})
	c.Flags().BoolVar(&stale, "stale", false, "ask this server alone, which may know less; it answers without a leader too")
	return c
}

// printServers prints the servers, and below them what keeps the log format where it is.
func printServers(a *cli.App, l *api.ServerList) {
	var newest uint64
	for i := range l.Servers {
		newest = max(newest, l.Servers[i].Applied)
	}
	var rows [][]string
	for i := range l.Servers {
		s := &l.Servers[i]
		behind, heard := "-", "-"
		if s.Applied > 0 {
			behind = fmt.Sprint(newest - s.Applied)
		}
		if s.Heard != nil {
			heard = term.Brief(time.Since(*s.Heard).Round(time.Second))
		}
		if s.Problem != "" {
			heard += " (" + s.Problem + ")"
		}
		rows = append(rows, []string{dash(s.Name), s.ID, s.Role, dash(s.Address), dash(s.API), dash(s.Version), behind, heard})
	}
	a.PrintTable([]string{"SERVER", "ID", "ROLE", "ADDRESS", "API", "VERSION", "BEHIND", "HEARD AGO"}, rows)
	switch {
	case l.Reads == 0:
		fmt.Fprintf(a.Stdout, "Log format %d. It is not raised before every server has been heard.\n", l.Format)
	case l.Reads > l.Format:
		fmt.Fprintf(a.Stdout, "Log format %d; every server reads %d, and the leader raises it.\n", l.Format, l.Reads)
	default:
		fmt.Fprintf(a.Stdout, "Log format %d.\n", l.Format)
	}
}

// dash stands for what is not known.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// joinTokenCommand makes muster servers join-token.
func joinTokenCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("join-token", "Make a token with which servers can join", `The token is good for an hour and for any number of servers. Whoever has it can join the cluster and gets its secrets.
On the new server:
  muster server -c muster.yaml --join ADDRESS --token TOKEN`, cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		t, err := cl.JoinToken(ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(t)
		}
		if _, err := fmt.Fprintln(a.Stdout, t.Token); err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stderr, "On the new server, until %s: muster server -c muster.yaml --join %s --token TOKEN\n", t.Expires.Local().Format(time.TimeOnly), t.Address)
		return err
	})
}

// serversHint adds to an error about a server that does not exist where to look for servers.
func serversHint(err error) error {
	if client.IsNotFound(err) {
		return cli.WithHint(err, "`muster servers list` shows the servers")
	}
	return err
}

// serversRemoveCommand makes muster servers remove.
func serversRemoveCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("remove SERVER", "Remove a server from the cluster", `SERVER is a name or an id. The server ends, if it runs. To use its host again, delete its data directory and join.
It is refused if no majority of the servers that stay answers.`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		if err := cl.RemoveServer(ctx, args[0]); err != nil {
			return serversHint(err)
		}
		return printDone(a, "removed", args[0])
	})
}

// transferCommand makes muster servers transfer.
func transferCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("transfer SERVER", "Let a server lead the cluster", "SERVER is a name or an id. Requests wait for the moment in which nobody leads.", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		if err := cl.TransferLeadership(ctx, args[0]); err != nil {
			return serversHint(err)
		}
		return printDone(a, "transferred", args[0])
	})
}

// printDone says what was done with a server.
func printDone(a *cli.App, what, server string) error {
	if a.JSON {
		return a.PrintJSON(map[string]string{what: server})
	}
	text := "Server %s is removed.\n"
	if what == "transferred" {
		text = "Server %s leads in a moment.\n"
	}
	_, err := fmt.Fprintf(a.Stdout, text, server)
	return err
}
