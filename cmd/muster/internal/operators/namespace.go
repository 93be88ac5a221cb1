package operators

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// namespaceCommand makes muster namespace, with all that is below it. There is none to make a
// namespace: the first job in it does.
func namespaceCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "namespace", Aliases: []string{"namespaces", "ns"}, Short: "Show and limit namespaces", Long: term.Reflow(`A namespace says whose work a job is. The first job in it creates it. * stands for all namespaces together.`)}
	c.AddCommand(namespaceListCommand(a), namespaceShowCommand(a), namespaceSetCommand(a))
	return c
}

// namespaceListCommand makes muster namespace list. The share is what fair scheduling gives the
// namespace now, which changes with what others want.
func namespaceListCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("list", "List namespaces", "Lists those with usage, demand or limits; * is all of them together.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
		list, err := cl.Namespaces(ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		var rows [][]string
		for i := range list.Namespaces {
			n := &list.Namespaces[i]
			rows = append(rows, []string{
				// Limits stand last: they are words, and of any length.
				n.Name, n.Class, weightText(n), fmt.Sprint(n.Jobs), fmt.Sprint(n.Waiting), fmt.Sprint(n.Allocs),
				fmt.Sprintf("%g", n.Used.CPU), muster.Bytes(n.Used.Memory).String(), limitsWords(&n.Limits),
			})
		}
		a.PrintTable([]string{"NAMESPACE", "CLASS", "SHARE", "JOBS", "WAITING", "ALLOCS", "CPU", "MEMORY", "AT MOST"}, rows)
		return nil
	})
}

// weightText is a namespace's share of the cluster now, or the weight of its class if the share is
// 0, as when nothing of the class wants anything; "-" without a class.
func weightText(n *api.Namespace) string {
	switch {
	case n.Class == "":
		return "-"
	case n.Share == 0:
		return fmt.Sprintf("weight %d", n.Weight)
	}
	return fmt.Sprintf("%.0f %%", 100*n.Share)
}

// limitsWords are limits in words, "-" if there are none. Only those that are set are named,
// because most namespaces have one or two of five.
func limitsWords(l *api.NamespaceLimits) string {
	var out []string
	if l.Jobs > 0 {
		out = append(out, muster.Counted(l.Jobs, "job"))
	}
	if l.Allocs > 0 {
		out = append(out, muster.Counted(l.Allocs, "allocation"))
	}
	if l.CPU > 0 {
		out = append(out, fmt.Sprintf("%g cpu", l.CPU))
	}
	if l.Memory > 0 {
		out = append(out, fmt.Sprintf("%s memory", l.Memory.Bytes()))
	}
	// A priority of 0 is a limit too, so this one has a pointer.
	if l.MaxPriority != nil {
		out = append(out, fmt.Sprintf("priority %d", *l.MaxPriority))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// namespaceShowCommand makes muster namespace show. A namespace that has nothing is no error: it
// need not be made before its first job.
func namespaceShowCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("show NAME", "Show the usage, demand and limits of a namespace", "", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		n, err := cl.Namespace(ctx, muster.Namespace(args[0]))
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(n)
		}
		printNamespace(a, n)
		return nil
	})
}

// printNamespace prints what a namespace has, wants and may have, and who set its limits.
func printNamespace(a *cli.App, n *api.Namespace) {
	// Who limited a namespace, and why, is what the limited ask first.
	set := ""
	if n.LimitSet != nil {
		set = "by " + n.LimitWho
		if n.LimitWhy != "" {
			set += ": " + n.LimitWhy
		}
	}
	// The class is the operator's, by the server's configuration; most clusters have none.
	class := ""
	if n.Class != "" {
		class = fmt.Sprintf("%s, of weight %d", n.Class, n.Weight)
	}
	share := ""
	if n.Share > 0 {
		share = fmt.Sprintf("%.1f %% among the classes that have or want something now", 100*n.Share)
	}
	a.PrintFields(
		"Namespace", n.Name, "Class", class, "Share", share,
		"Has", fmt.Sprintf("%s not ended, %s with %g cpu and %s memory", muster.Counted(n.Jobs, "job"), muster.Counted(n.Allocs, "allocation"), n.Used.CPU, muster.Bytes(n.Used.Memory)),
		"Waiting", muster.Counted(n.Waiting, "member"),
		"At most", limitsWords(&n.Limits), "Set", set,
	)
}

// namespaceSetCommand makes muster namespace set. Limits are set as a whole, so it reads those that
// are set and changes some. Two operators at the same moment may undo each other's change; the
// history shows both.
func namespaceSetCommand(a *cli.App) *cobra.Command {
	var (
		c                      *cobra.Command
		memory, reason         string
		jobs, allocs, priority int
		cpu                    float64
		none                   bool
	)
	c = a.ClientCommand("set NAME", "Limit what a namespace may use at once", `Limits that are not named do not change; 0 removes one, --none all of them. Beyond the limit of jobs a submission is refused; beyond those of allocations, cpu and memory, members wait. Nothing that runs is stopped. * stands for all namespaces together.

  muster namespace set team-a --allocations 200 --cpu 64
  muster namespace set '*' --allocations 1000`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		name := muster.Namespace(args[0])
		// A namespace that has never had a job can be limited too.
		before, err := cl.Namespace(ctx, name)
		if err != nil {
			return err
		}
		// A flag counts if it was given: 0 lifts a limit, which is not the same as to leave it.
		changed := c.Flags().Changed
		// Without any limit there is nothing to set, and to set nothing would still be recorded.
		if !none && !changed("jobs") && !changed("allocations") && !changed("cpu") && !changed("memory") && !changed("max-priority") {
			return cli.Usage(errors.New("say what to set: --jobs, --allocations, --cpu, --memory, --max-priority or --none"))
		}
		// With --none all limits that are not named are lifted; those that are named are set.
		l := before.Limits
		if none {
			l = api.NamespaceLimits{}
		}
		if changed("jobs") {
			l.Jobs = jobs
		}
		if changed("allocations") {
			l.Allocs = allocs
		}
		if changed("cpu") {
			l.CPU = cpu
		}
		if changed("memory") {
			if l.Memory, err = api.ParseSize(memory); err != nil {
				return cli.Usage(fmt.Errorf("--memory: %w", err))
			}
		}
		if changed("max-priority") {
			// Below 0 there is no priority, so -1 can stand for the default.
			if l.MaxPriority = &priority; priority < 0 {
				l.MaxPriority = nil
			}
		}
		n, err := cl.LimitNamespace(ctx, name, api.NamespaceSet{Limits: l, Reason: reason, Who: myself()})
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(n)
		}
		printNamespace(a, n)
		return nil
	})
	f := c.Flags()
	f.IntVar(&jobs, "jobs", 0, "jobs that have not ended")
	f.IntVar(&allocs, "allocations", 0, "allocations at once")
	cli.CoresVar(f, &cpu, "cpu", "total cores of its allocations")
	f.StringVar(&memory, "memory", "", "total memory of its allocations, for example 64GiB")
	f.IntVar(&priority, "max-priority", 0, "the highest priority of its jobs; -1: the default of 70")
	f.BoolVar(&none, "none", false, "remove all limits that are not named")
	f.StringVar(&reason, "reason", "", "reason, recorded in the history")
	return c
}
