package operators

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
)

// trimNoun takes the noun off the type of an event: in a node's history it is always "node". What
// an intent became reads as a word of its own, too.
func trimNoun(kind string) string {
	_, verb, _ := strings.Cut(kind, ".")
	return strings.TrimPrefix(verb, "intent-")
}

// poolHint adds to an error about a pool that does not exist where to look for pools. A pool's name
// comes from the configuration, and is easily mistyped.
func poolHint(err error) error {
	if client.IsNotFound(err) {
		return cli.WithHint(err, "`muster pool list` shows the pools")
	}
	return err
}

// poolCommand makes muster pool, with all that is below it. Pools are made by the server's
// configuration, so there is no command to make one.
func poolCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "pool", Short: "Manage pools", Long: "Manage pools: the rules by which nodes are created.", Args: cobra.NoArgs, RunE: cli.NeedsCommand}
	c.AddCommand(poolListCommand(a), poolShowCommand(a), poolResumeCommand(a))
	return c
}

// poolListCommand makes muster pool list. The columns are those that differ when something is
// wrong: nodes that do not come, that are lost or held, blocks, and a breaker that has tripped.
func poolListCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("list", "List pools", "", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		l, err := cl.Pools(ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(l)
		}
		var rows [][]string
		for i := range l.Pools {
			p := &l.Pools[i]
			rows = append(rows, []string{
				// Adopted nodes count as coming: they exist, and do not serve yet.
				p.Name, p.Provider, fmt.Sprintf("%d/%d", p.Nodes.Live-p.Nodes.Stopped, p.Max), fmt.Sprint(p.Nodes.Serving), fmt.Sprint(p.Nodes.Launching + p.Nodes.Starting + p.Nodes.Booting + p.Nodes.Adopted),
				fmt.Sprint(p.Nodes.Idle), fmt.Sprint(p.Nodes.Lost), fmt.Sprint(p.Nodes.Held), fmt.Sprintf("%g", p.Price), spentText(p.Spent), fmt.Sprint(len(p.Blocks)), poolWord(p),
			})
		}
		a.PrintTable([]string{"POOL", "PROVIDER", "NODES", "SERVING", "COMING", "IDLE", "LOST", "HELD", "AN HOUR", "MONTH", "BLOCKS", "BREAKER"}, rows)
		return nil
	})
}

// spentText is an amount of money; "-" where the pool has no price. No price is not 0: nobody knows
// what such a node costs.
func spentText(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *f)
}

// poolWord is a pool's breaker in a table, and whether many of its nodes failed at once. Both mean
// that the server has stopped to do something by itself.
func poolWord(p *api.Pool) string {
	word := "closed"
	if p.Breaker.Tripped != nil {
		word = "tripped"
	}
	if p.Suspect != nil {
		word += ", suspect"
	}
	return word
}

// poolShowCommand makes muster pool show. Everything that the server knows of the pool is one
// answer, so that the parts fit together.
func poolShowCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("show NAME", "Show a pool: its limits, its nodes, and what the provider refuses", "", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		p, err := cl.Pool(ctx, muster.PoolName(args[0]))
		if err != nil {
			return poolHint(err)
		}
		if a.JSON {
			return a.PrintJSON(p)
		}
		printPool(a, p)
		return nil
	})
}

// surplusText says that a pool has more nodes than it may, as after its maximum was lowered; "" if
// not. It says what happens to them, because a number above its limit looks like a fault.
func surplusText(p *api.Pool) string {
	// Stopped nodes do not count for the maximum.
	if p.Nodes.Live-p.Nodes.Stopped <= p.Max {
		return ""
	}
	return fmt.Sprintf("%d nodes, at most %d: the rest is drained, and destroyed when its work has ended; nodes that are held, or adopted and not in service yet, are not drained", p.Nodes.Live-p.Nodes.Stopped, p.Max)
}

// leaseText says when a node without a server ends itself; "" if it never does. Node and pool show
// it alike.
func leaseText(d api.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%s: a node that hears from no server for so long ends itself", term.Brief(d.Std()))
}

// suspectText says why a pool is suspect; "" if it is not. If many of its nodes fail at once, the
// nodes are seldom what is broken: so few are quarantined, and the operator has to look.
func suspectText(p *api.Pool, now time.Time) string {
	if p.Suspect == nil {
		return ""
	}
	return fmt.Sprintf("%s ago: %s; at most %d are quarantined at once, so look for what they share", term.Ago(&p.Suspect.Since, now), p.Suspect.Why, p.Suspect.Most)
}

// printPool prints a pool: its limits, what lives, and what its provider refuses. Then come the
// tables, each only if it has rows.
func printPool(a *cli.App, p *api.Pool) {
	now := time.Now()
	// The stages of nodes are counted on one line, and what is the matter with some of them on the
	// next.
	n := p.Nodes
	// A pool without a price has no budget that could be used up.
	spent := ""
	if p.Spent != nil {
		spent = spentText(p.Spent) + " this month"
	}
	a.PrintFields(
		"Pool", p.Name, "Provider", p.Provider, "Offerings", strings.Join(p.Offerings, ", "),
		"Limits", fmt.Sprintf("%d to %d nodes, %d launching at once, %d spare", p.Min, p.Max, p.MaxLaunching, p.Spare),
		"Budget", budgetText(p),
		"Time-outs", fmt.Sprintf("idle %s, boot %s, grace %s", term.Brief(p.IdleTimeout.Std()), term.Brief(p.BootTimeout.Std()), term.Brief(p.Grace.Std())),
		"Lease", leaseText(p.Lease),
		"Stops", stopText(p),
		"Nodes", fmt.Sprintf("%d: %d launching, %d booting, %d adopted, %d serving, %d draining, %d terminating%s", n.Live, n.Launching, n.Booting, n.Adopted, n.Serving, n.Draining, n.Terminating, stoppedText(&n)),
		"Of them", fmt.Sprintf("%d idle, %d warm, %d unready, %d sidelined, %d lost, %d broken, %d held", n.Idle, n.Warm, n.Unready, n.Sidelined, n.Lost, n.Broken, n.Held),
		"Above maximum", surplusText(p), "Suspect", suspectText(p, now),
		"Costs", fmt.Sprintf("%g an hour now", p.Price), "Spent", spent,
		"Breaker", breakerText(p, now), "Provider's list", blindText(p, now), "Provider's offers", unsoldText(p, now), "Provider errors", troublesText(p), "Call rates", ratesText(p),
	)
	printPoolTables(a, p, now)
}

// stopText says which nodes are stopped instead of destroyed; "" if none are.
func stopText(p *api.Pool) string {
	if p.StopMost == 0 {
		return ""
	}
	return fmt.Sprintf("at most %s without work instead of destroying them, for %s", muster.Counted(p.StopMost, "node"), p.StopTimeout)
}

// stoppedText counts nodes whose machine is off or is being switched on; "" if there are none, as in most
// pools.
func stoppedText(n *api.PoolNodes) string {
	if n.Stopped+n.Starting == 0 {
		return ""
	}
	return fmt.Sprintf(", %d stopped, %d starting", n.Stopped, n.Starting)
}

// budgetText is how much of a pool's budget is used; "" without one.
func budgetText(p *api.Pool) string {
	// Four digits are enough to see how near the limit is.
	limit := func(used, most float64, per string) string {
		if most == 0 {
			return ""
		}
		return fmt.Sprintf("%.4g of %g %s", used, most, per)
	}
	var budget []string
	// A budget may have a limit for the hour, for the month, for both, or for none.
	for _, s := range []string{limit(p.Budget.Hour, p.Budget.PerHour, "an hour"), limit(p.Budget.Month, p.Budget.PerMonth, "a month")} {
		if s != "" {
			budget = append(budget, s)
		}
	}
	// The alert is a share of the budget that was passed, in percent.
	if p.Budget.Alert > 0 {
		budget = append(budget, fmt.Sprintf("%d %% are reached", p.Budget.Alert))
	}
	return strings.Join(budget, ", ")
}

// printPoolTables prints the lists that a pool has, each only if it has rows.
func printPoolTables(a *cli.App, p *api.Pool, now time.Time) {
	// What nodes keep (images and data) decides where the scheduler likes to place members.
	if len(p.Locality) > 0 {
		var rows [][]string
		for _, w := range p.Locality {
			rows = append(rows, []string{w.Key, fmt.Sprint(w.Nodes)})
		}
		fmt.Fprintln(a.Stdout)
		a.PrintTable([]string{"CACHED", "NODES"}, rows)
	}
	// A block is what the provider refused lately, and for how long it is not asked again.
	if len(p.Blocks) > 0 {
		var rows [][]string
		for _, b := range p.Blocks {
			left := "tried with care"
			// A block whose time is over is not gone: the next launch tries it, with care.
			if !b.Over {
				left = term.Brief(b.Until.Sub(now))
			}
			rows = append(rows, []string{scope(&b), left, b.Why})
		}
		fmt.Fprintln(a.Stdout)
		a.PrintTable([]string{"BLOCKED", "FOR ANOTHER", "WHY"}, rows)
	}
	// What waits for this pool, and why no node is launched for it.
	if len(p.Waiting) > 0 {
		var rows [][]string
		for _, w := range p.Waiting {
			rows = append(rows, []string{fmt.Sprint(w.Members), fmt.Sprint(w.Priority), w.Reason})
		}
		fmt.Fprintln(a.Stdout)
		a.PrintTable([]string{"WAITING", "PRIORITY", "WHY"}, rows)
	}
}

// blindText says that the provider cannot be asked what it has; "" if it can. Until it can, a node
// that is missing is not known to be gone, so the server takes none for destroyed.
func blindText(p *api.Pool, now time.Time) string {
	if p.Blind == nil {
		return ""
	}
	return fmt.Sprintf("fails since %s: %s; until a complete list succeeds, no missing instance is known to be gone; try `muster provider check %s`",
		term.Brief(now.Sub(p.Blind.Since)), p.Blind.Error, p.Provider)
}

// unsoldText says that the provider cannot be asked what it sells; "" if it can. The offers that
// were read before are used meanwhile, and may be wrong by now.
func unsoldText(p *api.Pool, now time.Time) string {
	if p.Unsold == nil {
		return ""
	}
	return fmt.Sprintf("cannot be read since %s: %s; those read before are used meanwhile; try `muster provider check %s`",
		term.Brief(now.Sub(p.Unsold.Since)), p.Unsold.Error, p.Provider)
}

// troublesText says for which nodes the provider did not do what it was asked to. The server asks
// again; an operator may see why it fails.
func troublesText(p *api.Pool) string {
	var out []string
	for _, t := range p.Troubles {
		out = append(out, "node "+t.Node+": "+t.Error)
	}
	return strings.Join(out, "; ")
}

// ratesText says in one sentence how often the provider is called at most, and what waits for that; ""
// if nothing limits it. A node that does not come may wait for nothing else.
func ratesText(p *api.Pool) string {
	words := map[string]string{"create": "creates", "destroy": "destroys", "read": "reads", "tags": "tag changes", "launch": "launch calls"}
	var rates, waits []string
	for _, r := range p.Rates {
		word := cmp.Or(words[r.Calls], r.Calls)
		rates = append(rates, fmt.Sprintf("%.3g %s a second (%d at once)", r.PerSecond, word, r.Burst))
		if r.Waiting > 0 {
			waits = append(waits, fmt.Sprintf("%d %s, the last for %s", r.Waiting, word, term.Brief(r.Last.Std())))
		}
	}
	if len(rates) == 0 {
		return ""
	}
	now := "nothing waits"
	if len(waits) > 0 {
		now = "waiting: " + strings.Join(waits, "; ")
	}
	return "at most " + strings.Join(rates, ", ") + "; " + now
}

// scope is what a block is about: the narrowest that was learned from the provider's answer, or all
// of the provider if the answer named nothing.
func scope(b *api.Block) string {
	var out []string
	// A block may name several of these, and holds where all of them hold.
	for _, f := range [][2]string{{"offering", b.Offering}, {"family", b.Family}, {"zone", b.Zone}, {"market", b.Market}} {
		if f[1] != "" {
			out = append(out, f[0]+" "+f[1])
		}
	}
	if len(out) == 0 {
		return "provider " + b.Provider
	}
	return strings.Join(out, ", ")
}

// breakerText is the state of a pool's breaker: what it waits for if it has tripped, and otherwise
// what was close to it.
func breakerText(p *api.Pool, now time.Time) string {
	b := &p.Breaker
	switch {
	case b.Tripped != nil:
		return fmt.Sprintf("tripped %s ago: %s; `muster pool resume %s` ends that", term.Ago(b.Tripped, now), b.Reason, p.Name)
	// It has not tripped, but nodes went that nothing explains: more of them would trip it.
	case b.Unexplained > 0:
		return fmt.Sprintf("closed; %d destroyed without an explanation in the last 10m", b.Unexplained)
	case b.Resumed != nil:
		return fmt.Sprintf("closed; resumed %s ago by %s", term.Ago(b.Resumed, now), b.Who)
	}
	return "closed"
}

// poolResumeCommand makes muster pool resume. It reads the pool before, because the answer alone
// does not say whether there was anything to resume; and an order that did nothing should say so.
func poolResumeCommand(a *cli.App) *cobra.Command {
	reason := ""
	c := a.ClientCommand("resume NAME", "Resume a pool after its breaker has tripped, and end its blocks", `The breaker trips when many nodes of a pool would be destroyed at once without a known cause, for example when the network or the provider's API fails. Check the nodes first: those out of contact are destroyed after this.

The launch blocks of the pool end as well: requests that the provider refused are repeated at once, for example after you corrected credentials or a quota. Otherwise they are repeated at the time that muster pool show prints.`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		// A breaker that had not tripped and nothing that was blocked: the order changes nothing.
		before, err := cl.Pool(ctx, muster.PoolName(args[0]))
		if err != nil {
			return poolHint(err)
		}
		p, err := cl.ResumePool(ctx, muster.PoolName(args[0]), api.PoolResume{Reason: reason, Who: myself()})
		if err != nil {
			return poolHint(err)
		}
		if a.JSON {
			return a.PrintJSON(p)
		}
		// It is no error: the pool is as the user wants it.
		if before.Breaker.Tripped == nil && p.Unblocked == 0 {
			fmt.Fprintf(a.Stdout, "the breaker of pool %s had not tripped, and nothing was blocked; nothing was done\n", p.Name)
			return nil
		}
		fmt.Fprintf(a.Stdout, "pool %s resumed%s\n", p.Name, term.SuffixIf(p.Unblocked > 0, fmt.Sprintf("; blocks ended: %d", p.Unblocked)))
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "reason, recorded in the history")
	return c
}
