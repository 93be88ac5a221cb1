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

func namespaceCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{Use: "namespace", Aliases: []string{"namespaces", "ns"}, Short: "See what namespaces have and want, and limit them", Long: term.Reflow(`A namespace says whose work a job is. It need not be made: the first job in it does. * stands for all of them together.`)}
	c.AddCommand(namespaceListCommand(a), namespaceShowCommand(a), namespaceSetCommand(a))
	return c
}

func namespaceListCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("list", "List namespaces", "Those that have or want something, or have limits; * is all of them together.", cobra.NoArgs, func(ctx context.Context, cl *client.Client, _ []string) error {
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
				n.Name, n.Class, weightText(n), fmt.Sprint(n.Jobs), fmt.Sprint(n.Waiting), fmt.Sprint(n.Allocs),
				fmt.Sprintf("%g", n.Used.CPU), muster.Bytes(n.Used.Memory).String(), limitsWords(&n.Limits),
			})
		}
		a.PrintTable([]string{"NAMESPACE", "CLASS", "SHARE", "JOBS", "WAITING", "ALLOCS", "CPU", "MEMORY", "AT MOST"}, rows)
		return nil
	})
}

func weightText(n *api.Namespace) string {
	switch {
	case n.Class == "":
		return "-"
	case n.Share == 0:
		return fmt.Sprintf("weight %d", n.Weight)
	}
	return fmt.Sprintf("%.0f %%", 100*n.Share)
}

// limitsWords are limits in words, "-" if there are none.
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
	if l.MaxPriority != nil {
		out = append(out, fmt.Sprintf("priority %d", *l.MaxPriority))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

func namespaceShowCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("show NAME", "Show what a namespace has, wants and may have", "", cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
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

func printNamespace(a *cli.App, n *api.Namespace) {
	set := ""
	if n.LimitSet != nil {
		set = "by " + n.LimitWho
		if n.LimitWhy != "" {
			set += ": " + n.LimitWhy
		}
	}
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

func namespaceSetCommand(a *cli.App) *cobra.Command {
	var (
		c                      *cobra.Command
		memory, reason         string
		jobs, allocs, priority int
		cpu                    float64
		none                   bool
	)
	c = a.ClientCommand("set NAME", "Limit what a namespace may have at once", `Limits that are not named stay as they are; 0 lifts one, --none all of them. A limit of jobs refuses
the next one; those of allocations, cpu and memory let further members wait. Nothing that runs is ended. * stands for all namespaces together.

  muster namespace set team-a --allocations 200 --cpu 64
  muster namespace set '*' --allocations 1000`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		name := muster.Namespace(args[0])
		before, err := cl.Namespace(ctx, name)
		if err != nil {
			return err
		}
		changed := c.Flags().Changed
		if !none && !changed("jobs") && !changed("allocations") && !changed("cpu") && !changed("memory") && !changed("max-priority") {
			return cli.Usage(errors.New("say what to set: --jobs, --allocations, --cpu, --memory, --max-priority or --none"))
		}
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
	f.Float64Var(&cpu, "cpu", 0, "cores that they hold together")
	f.StringVar(&memory, "memory", "", "memory that they hold together, as 64GiB")
	f.IntVar(&priority, "max-priority", 0, "the highest priority of its jobs; -1: the default of 70")
	f.BoolVar(&none, "none", false, "lift all limits that are not named")
	f.StringVar(&reason, "reason", "", "why, for those who ask later")
	return c
}
