package operators

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// eventsCommand makes muster events. Events are filtered by the server, so what follows a busy
// cluster does not read all of it.
func eventsCommand(a *cli.App) *cobra.Command {
	var follow bool
	var after, job, node string
	c := a.ClientCommand("events", "Show events", `Prints the recorded events, oldest first. With -f it continues with new ones, across restarts of the server. On a terminal lines are cut to its width. With --json each is a line of JSON.`, cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		q := client.EventQuery{After: after, Once: !follow, Namespace: muster.Namespace(a.Namespace), Node: muster.NodeID(node)}
		if job != "" {
			// A job may be named with its namespace, as everywhere.
			key, err := a.JobKey(job)
			if err != nil {
				return err
			}
			q.Namespace, q.Job = key.Namespace, key.Name
		}
		// 0 is before the first index: whoever types it means the beginning.
		if q.After == "0" {
			q.After = client.Oldest
		}
		// What follows goes on over restarts of the server.
		if follow {
			cl = cl.Patient(cli.FollowPatience)
		}
		return printEvents(ctx, a, cl, q, follow)
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events")
	c.Flags().StringVar(&after, "after", client.Oldest, "begin after this log index or event; \"\" is now")
	c.Flags().StringVar(&job, "job", "", "only of this job")
	c.Flags().StringVar(&node, "node", "", "only of this node")
	a.NamespaceFlag(c, "only of this namespace")
	return c
}

// printEvents prints events as they come, to the last that is kept, or until a signal if it
// follows. With --json each event is one line, because a stream has no end at which an array could
// be closed.
func printEvents(ctx context.Context, a *cli.App, cl *client.Client, q client.EventQuery, follow bool) error {
	lines := term.JSONEncoder(a.Stdout)
	// A terminal is narrow, and nobody reads milliseconds there. Its width may change meanwhile.
	when := "2006-01-02 15:04:05.000"
	if term.Width(a.Stdout) > 0 {
		when = "01-02 15:04:05"
	}
	// Nothing at all may be because a name is wrong.
	printed := false
	for ev, err := range cl.Events(ctx, q) {
		var old *client.TooOld
		switch {
		case errors.As(err, &old):
			return cli.WithHint(err, "without --after it begins with the oldest that are kept")
		// A signal ends it, and the broken connection is only what that looks like.
		case err != nil && follow && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return afterProblem(err)
		case a.JSON:
			err = lines.Encode(ev)
		default:
			line := fmt.Sprintf("%s  %-16s  %s", ev.Time.Local().Format(when), term.OneLine(ev.Type), term.OneLine(ev.Text))
			_, err = fmt.Fprintln(a.Stdout, term.Cut(line, term.Width(a.Stdout)))
		}
		if err != nil {
			return err
		}
		printed = true
	}
	if !printed {
		noEvents(a, q)
	}
	return nil
}

// noEvents says that nothing is kept of what was asked for: its name may be wrong, and the server
// cannot tell, because events outlive what they are about.
func noEvents(a *cli.App, q client.EventQuery) {
	var of, hint string
	switch {
	case q.Node != "":
		of, hint = "node "+string(q.Node), "`muster node list --all` shows the nodes"
	case q.Job != "":
		of, hint = "job "+muster.JobKey{Namespace: q.Namespace, Name: q.Job}.String(), "`muster job list` shows the jobs"
	case q.Namespace != "":
		of, hint = "namespace "+string(q.Namespace), "`muster namespace list` shows the namespaces"
	default:
		return
	}
	fmt.Fprintf(a.Stderr, "muster: no events of %s are kept; %s\n", of, hint)
}

// afterProblem names the flag that an event to begin after comes from. The client sends it in the
// query, or as a header, and the server's answer names that.
func afterProblem(err error) error {
	var p *api.Problem
	if errors.As(err, &p) && len(p.Errors) == 1 && slices.Contains([]string{"query.after", "header.Last-Event-ID"}, p.Errors[0].Location) {
		return cli.Usage(fmt.Errorf("--after: %s", p.Errors[0].Message))
	}
	return err
}
