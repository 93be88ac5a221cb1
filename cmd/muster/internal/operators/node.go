package operators

import (
	"cmp"
	"context"
	"fmt"
	"sort"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// nodeCommand makes muster node, with all that is below it. list and show only look; hold, drain,
// run and destroy give orders (node_order.go).
func nodeCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "List, hold, drain and destroy nodes", Long: "List, hold, drain and destroy the machines that jobs run on.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(nodeListCommand(a), nodeShowCommand(a), nodeHoldCommand(a), nodeDrainCommand(a), nodeRunCommand(a), nodeDestroyCommand(a))
	return c
}

// nodeListCommand makes muster node list. It reads all pages before it prints: the columns are as
// wide as their longest cell. Nodes that are gone are kept for a while by the server, and are more
// than those that live on a busy cluster; so they are left out unless the user wants them.
func nodeListCommand(a *cli.App) *cobra.Command {
	var pool, stage string
	var all bool
	c := a.ClientCommand("list", "List nodes", "Nodes that are gone are listed with --all.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		list := api.NodeList{Nodes: []api.Node{}}
		q := client.NodeQuery{Pool: muster.PoolName(pool), Stage: muster.NodeStage(stage), Limit: client.MaxPage}
		for {
			page, err := cl.Nodes(ctx, q)
			if err != nil {
				return err
			}
			// A stage that is asked for is what the user wants, gone or not.
			for _, n := range page.Nodes {
				if all || stage != "" || n.Stage != string(muster.NodeGone) {
					list.Nodes = append(list.Nodes, n)
				}
			}
			// The pages are of slightly different moments. The index is that of the last one.
			list.Index = page.Index
			if q.After = page.Next; page.Next == "" {
				break
			}
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		// On a cluster without work this is the normal state, so it says what will change it.
		if len(list.Nodes) == 0 {
			fmt.Fprintln(a.Stderr, "muster: no nodes; they are made when there is work")
			return nil
		}
		now := time.Now()
		var rows [][]string
		for i := range list.Nodes {
			n := &list.Nodes[i]
			rows = append(rows, []string{
				n.ID, n.Pool, n.Offering, n.Stage, n.Health, intent(n), fmt.Sprint(n.Allocs),
				fmt.Sprintf("%g/%g", n.Used.CPU, n.Capacity.CPU),
				fmt.Sprintf("%s/%s", muster.Bytes(n.Used.Memory), muster.Bytes(n.Capacity.Memory)),
				term.Ago(&n.Launched, now), cmp.Or(n.Trouble, n.Reason),
			})
		}
		a.PrintTable([]string{"NODE", "POOL", "OFFERING", "STAGE", "HEALTH", "INTENT", "ALLOCS", "CPU", "MEMORY", "AGE", "REASON"}, rows)
		return nil
	})
	c.Flags().StringVar(&pool, "pool", "", "only nodes of this pool")
	c.Flags().StringVar(&stage, "stage", "", "only nodes in this stage")
	c.Flags().BoolVar(&all, "all", false, "include nodes that are gone")
	return c
}

// intent is a node's intent, or "-" for run: that is what nearly all have.
func intent(n *api.Node) string {
	return term.OrDash(strings.TrimPrefix(n.Intent, string(muster.NodeRun)))
}

// shownNode is what `muster node show --json` prints: the node as the API has it, with what runs
// there beside it.
type shownNode struct {
	*api.Node
	LiveAllocs []api.Alloc `json:"live_allocs"`
}

// nodeShowCommand makes muster node show. What runs on the node is asked for after the node: a node
// that does not exist is then one clear error.
func nodeShowCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("show ID", "Show a node and what runs on it", "", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		n, err := cl.Node(ctx, muster.NodeID(args[0]))
		if err != nil {
			return nodeHint(err)
		}
		allocs := []api.Alloc{}
		for al, err := range cl.AllAllocs(ctx, client.AllocQuery{Node: muster.NodeID(args[0]), Live: true}) {
			if err != nil {
				return err
			}
			allocs = append(allocs, al)
		}
		if a.JSON {
			return a.PrintJSON(shownNode{n, allocs})
		}
		printNode(a, n)
		printHistory(a, n)
		// An empty table would be a line of headers that says nothing.
		if len(allocs) == 0 {
			return nil
		}
		now := time.Now()
		var rows [][]string
		for i := range allocs {
			al := &allocs[i]
			rows = append(rows, []string{cli.JobKeyOf(al.Namespace, al.Job).String(), fmt.Sprint(al.Index), fmt.Sprint(al.Attempt), cli.AllocStatus(al), term.Ago(al.Started, now)})
		}
		fmt.Fprintln(a.Stdout)
		a.PrintTable([]string{"JOB", "MEMBER", "ATTEMPT", "STATUS", "RAN"}, rows)
		return nil
	})
}

// usageOf is what the agent of a node uses for itself, as it measured that last; "" if it has not
// yet. Memory and disk are what an operator looks at when a small node behaves oddly.
func usageOf(u *api.NodeUsage) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%.1f cpu seconds so far, %s memory; %s disk free", u.CPUSeconds, muster.Bytes(u.Memory), muster.Bytes(u.FreeDisk))
}

// containersOf says which containers a node can run, and by what. Before a node has joined nobody
// knows. That it runs none is said in a sentence, because jobs with an image then wait for no
// reason that can be seen elsewhere.
func containersOf(n *api.Node) string {
	if n.Joined == nil {
		return ""
	}
	if by := n.Attributes["containers"]; by != "" {
		return "by " + by
	}
	return "none: jobs with an image do not run here" + term.SuffixIf(len(n.Problems) > 0, "; see the problems")
}

// intentText is a node's intent: who set it and when, when it ends, and why it was set.
func intentText(n *api.Node, now time.Time) string {
	text := n.Intent
	if n.IntentWho != "" {
		text += fmt.Sprintf(", by %s %s ago", n.IntentWho, term.Ago(n.IntentSince, now))
	}
	if n.IntentUntil != nil {
		left := term.Brief(n.IntentUntil.Sub(now))
		// The end of a drain is a deadline for what runs there; the end of a hold is only its end.
		if n.Intent == string(muster.NodeDrain) {
			text += fmt.Sprintf(", what still runs in %s is stopped", left)
		} else {
			text += ", for another " + left
		}
	}
	if n.IntentReason != "" {
		text += ": " + n.IntentReason
	}
	return text
}

// sidelinedText is for how long a quarantined node gets no work; "" if it is not. The time may be
// over a moment before the server ends it.
func sidelinedText(n *api.Node, now time.Time) string {
	if n.Sidelined == nil {
		return ""
	}
	return "for another " + term.Brief(max(n.Sidelined.Sub(now), 0))
}

// failuresText is at what a node failed lately by its own fault, which is what quarantines it.
func failuresText(n *api.Node, now time.Time) string {
	var out []string
	for _, f := range n.Failures {
		out = append(out, fmt.Sprintf("%s (%s ago)", f.What, term.Ago(&f.Time, now)))
	}
	return strings.Join(out, "; ")
}

// printNode prints all that is known of a node. What a node does not have is left out, so a new
// node is a few lines and a broken one shows what is the matter.
func printNode(a *cli.App, n *api.Node) {
	now := time.Now()
	// Resources are written as everywhere else in Muster, and not as the numbers of the API.
	amount := func(r api.Resources) string {
		return muster.Resources{CPU: muster.MilliCPU(r.CPU * 1000), Memory: muster.Bytes(r.Memory), Disk: muster.Bytes(r.Disk)}.String()
	}
	// A moment is shown with its age, which is what people compare.
	at := func(t *time.Time) string {
		if t == nil || t.IsZero() {
			return ""
		}
		return fmt.Sprintf("%s (%s ago)", t.Local().Format(time.DateTime), term.Ago(t, now))
	}
	var attributes []string
	for k, v := range n.Attributes {
		attributes = append(attributes, k+"="+v)
	}
	// A map has no order, and two looks at one node should be alike.
	sort.Strings(attributes)
	a.PrintFields(
		"Node", n.ID, "Pool", n.Pool, "Offering", n.Offering, "Provider", n.Provider, "Zone", n.Zone, "Market", n.Market,
		"Price", fmt.Sprintf("%g an hour", n.Price), "Instance", n.Instance,
		"Stage", n.Stage, "Health", n.Health, "Intent", intentText(n, now), "Takes work", map[bool]string{true: "yes", false: "no"}[n.Schedulable], "Reason", n.Reason, "Provider error", n.Trouble,
		"Capacity", amount(n.Capacity), "Used", amount(n.Used), "Allocations", fmt.Sprint(n.Allocs),
		"Containers", containersOf(n), "Uses", usageOf(n.Usage), "Problems", strings.Join(sentences(n.Problems), "\n"),
		"Agent", n.AgentVersion, "Attributes", strings.Join(attributes, " "),
		"Lease", leaseText(n.Lease), "Boot error", n.BootError, "Sidelined", sidelinedText(n, now), "Own failures", failuresText(n, now), "Warm", strings.Join(n.Warm, " "),
		"Launched", at(&n.Launched), "Joined", at(n.Joined), "Gone", at(n.Gone),
	)
}

// sentences are the problems of a node as sentences, one line each. An agent writes them in one
// piece, with semicolons.
func sentences(problems []string) (lines []string) {
	for _, p := range problems {
		parts := strings.Split(p, "; ")
		for i, part := range parts {
			if r, n := utf8.DecodeRuneInString(part); unicode.IsLetter(r) && !strings.HasPrefix(part, "muster") {
				parts[i] = string(unicode.ToUpper(r)) + part[n:]
			}
		}
		lines = append(lines, "- "+strings.TrimSuffix(strings.Join(parts, ". "), ".")+".")
	}
	return lines
}
