package operators

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// myself is who gives an order, as user@host, for those who read the history later. It is no proof:
// the server knows the token, not the person. What cannot be found out is left out.
func myself() string {
	name := os.Getenv("USER")
	// The environment may say anything; the system knows better, if it knows.
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil || name == "" {
		return name
	}
	return name + "@" + host
}

// nodeHint adds to an error about a node that does not exist where to look for nodes.
func nodeHint(err error) error {
	if client.IsNotFound(err) {
		return cli.WithHint(err, "`muster node list --all` shows the nodes")
	}
	return err
}

// order makes a command that gives one node an order, and says how the node is then. Act gives the
// order; tell makes the words behind the node's name.
//
// The answer is the node after the order. A node may be gone by then, whatever was ordered, so that
// is said first.
func order(a *cli.App, use, short, long string, act func(ctx context.Context, cl *client.Client, id muster.NodeID, reason string) (*api.Node, error), tell func(n *api.Node) string) *cobra.Command {
	reason := ""
	// The reason is optional: an order at night should not fail for want of one.
	c := a.ClientCommand(use, short, long, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// The order is given once. A client that tries again asks for the same state, so that does
		// no harm.
		n, err := act(ctx, cl, muster.NodeID(args[0]), reason)
		if err != nil {
			return nodeHint(err)
		}
		if a.JSON {
			return a.PrintJSON(n)
		}
		if n.Stage == string(muster.NodeGone) {
			fmt.Fprintf(a.Stdout, "node %s is gone\n", n.ID)
			return nil
		}
		fmt.Fprintf(a.Stdout, "node %s %s\n", n.ID, term.OneLine(tell(n)))
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "reason, recorded in the history")
	return c
}

// nodeHoldCommand makes muster node hold. Without an end a hold stays until somebody ends it: to
// look into a broken node may take days, and a node that vanishes meanwhile takes the reason with
// it.
func nodeHoldCommand(a *cli.App) *cobra.Command {
	var lasts time.Duration
	c := order(a, "hold ID", "Keep a node from new work and from being destroyed", `Muster never destroys a node on hold: neither an idle time-out nor broken health nor a quota does. Its work keeps running. `+"`muster node run ID`"+` ends the hold, or the time given with --for does.`,
		func(ctx context.Context, cl *client.Client, id muster.NodeID, reason string) (*api.Node, error) {
			// 0 stands for no end, so only a time below it is a mistake that can be found here.
			if lasts < 0 {
				return nil, cli.Usage(fmt.Errorf("--for is %s; give a time above 0s", lasts))
			}
			return cl.HoldNode(ctx, id, api.NodeHold{Reason: reason, Who: myself(), For: api.Duration(lasts)})
		},
		func(n *api.Node) string {
			// The answer is the server's, so it shows the end that the server has reckoned.
			if n.IntentUntil == nil {
				return "is held until it is set to run"
			}
			return fmt.Sprintf("is held until %s", n.IntentUntil.Local().Format(time.DateTime))
		})
	cli.DurationVar(c.Flags(), &lasts, "for", 0, "how long, for example 2h (default: until muster node run)")
	return c
}

// nodeDrainCommand makes muster node drain. Without a deadline it waits for what runs there,
// however long that takes: nothing is stopped by an order that did not say so.
func nodeDrainCommand(a *cli.App) *cobra.Command {
	var deadline time.Duration
	c := order(a, "drain ID", "Drain a node and destroy it", `It gets no new work, and is destroyed when its work has ended. With --deadline, work that still runs then is stopped, with its kill grace, and placed elsewhere; that does not count as an attempt. `+"`muster node run ID`"+` cancels the drain while the node still serves.`,
		func(ctx context.Context, cl *client.Client, id muster.NodeID, reason string) (*api.Node, error) {
			// 0 stands for no deadline.
			if deadline < 0 {
				return nil, cli.Usage(fmt.Errorf("--deadline is %s; give a time above 0s", deadline))
			}
			return cl.DrainNode(ctx, id, api.NodeDrain{Reason: reason, Who: myself(), Deadline: api.Duration(deadline)})
		}, departure)
	cli.DurationVar(c.Flags(), &deadline, "deadline", 0, "stop work that still runs after this time, for example 10m (default: wait until it has ended)")
	return c
}

// nodeRunCommand makes muster node run.
func nodeRunCommand(a *cli.App) *cobra.Command {
	return order(a, "run ID", "Return a node to service", "Ends a hold, or a drain.",
		func(ctx context.Context, cl *client.Client, id muster.NodeID, reason string) (*api.Node, error) {
			return cl.RunNode(ctx, id, api.NodeOrder{Reason: reason, Who: myself()})
		},
		func(n *api.Node) string {
			// The order is only one of three things that decide: the node must serve and be in good
			// health too.
			if n.Schedulable {
				return "takes work"
			}
			return fmt.Sprintf("is set to run; it is %s, %s", n.Stage, n.Health)
		})
}

// nodeDestroyCommand makes muster node destroy. It does not ask whether that is meant: scripts use
// it, and without --now nothing that runs is lost.
func nodeDestroyCommand(a *cli.App) *cobra.Command {
	now := false
	c := order(a, "destroy ID", "Destroy a node", `It gets no new work and is destroyed when its work has ended: like drain, but it cannot be undone. With --now it is destroyed at once: its work is lost, and placed again elsewhere.`,
		func(ctx context.Context, cl *client.Client, id muster.NodeID, reason string) (*api.Node, error) {
			return cl.DestroyNode(ctx, id, api.NodeDestroy{Reason: reason, Who: myself(), Now: now})
		}, departure)
	c.Flags().BoolVar(&now, "now", false, "do not wait for running work")
	return c
}

// departure says how far a node is that drains or is destroyed: what it waits for is what the user
// wants to know.
func departure(n *api.Node) string {
	switch {
	case n.Stage == string(muster.NodeTerminating):
		return "is being destroyed"
	// A deadline ends the wait, so it is what the user should know.
	case n.Allocs > 0 && n.Intent == string(muster.NodeDrain) && n.IntentUntil != nil:
		return fmt.Sprintf("gets no new work; what still runs there at %s is stopped and runs elsewhere, and then it is destroyed", n.IntentUntil.Local().Format(time.DateTime))
	case n.Allocs == 1:
		return "gets no new work, and is destroyed after its last allocation"
	case n.Allocs > 1:
		return fmt.Sprintf("gets no new work, and is destroyed after its %d allocations", n.Allocs)
	}
	return "is empty, and will be destroyed"
}

// printHistory prints what became of a node, by whom and why. The server drops old entries; their
// number is printed, so that nobody takes the first line for the beginning.
func printHistory(a *cli.App, n *api.Node) {
	if len(n.History) == 0 {
		return
	}
	var rows [][]string
	for _, e := range n.History {
		rows = append(rows, []string{e.Time.Local().Format(time.DateTime), trimNoun(e.Type), term.OrDash(e.Who), term.OrDash(e.Reason)})
	}
	fmt.Fprintln(a.Stdout)
	a.PrintTable([]string{"TIME", "BECAME", "BY", "REASON"}, rows)
	if n.HistoryLost > 0 {
		fmt.Fprintf(a.Stdout, "%d earlier ones are not kept\n", n.HistoryLost)
	}
}
