package operators

import (
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

// costCommand makes muster cost. The server counts and adds up; this only reads what is asked for
// and lays out the answer.
func costCommand(a *cli.App) *cobra.Command {
	var q client.CostQuery
	var since string
	c := a.Command("cost", "Show costs by job, namespace, pool or month", `
The cost of a node is split into the shares of the jobs that ran on it, and idle cost: boot, time without work, and unused capacity. A job's share is the mean of its share of cores and of memory. Nodes and jobs that still run are counted up to now. Cost is kept by calendar month (UTC), so a report begins on the first day of a month.

  muster cost                          jobs of this month, most expensive first
  muster cost --by pool --since 2026-01
  muster cost --by month --since 2026-01 --json`, cobra.NoArgs, func(ctx context.Context, _ []string) error {
		var err error
		// The months are UTC's, and now is this host's.
		if q.Since, err = month(since, time.Now()); err != nil {
			return cli.Usage(err)
		}
		// It is checked here, because the server's answer would name a field and not the flag.
		switch q.By {
		case "job", "namespace", "pool", "month":
		default:
			return cli.Usage(fmt.Errorf("--by %s: it is one of job, namespace, pool, month", q.By))
		}
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		cost, err := cl.Cost(ctx, q)
		if err != nil {
			return err
		}
		if a.JSON {
			return a.PrintJSON(cost)
		}
		printCost(a, cost)
		return nil
	})
	c.Flags().StringVar(&q.By, "by", "job", "group by: job, namespace, pool or month")
	c.Flags().StringVar(&since, "since", "", "first month, as 2026-09, a day in it, or how long ago, as 30d; default: this month")
	// More rows than a person reads are added up by the server.
	c.Flags().IntVar(&q.Limit, "limit", 100, "most rows to print; the rest are summed")
	return c
}

// month reads where to begin: a month, a day in it, or how long before now; "" leaves it to the
// server. Cost is kept by month in UTC, so a day stands for its month.
func month(since string, now time.Time) (string, error) {
	if since == "" {
		return "", nil
	}
	for _, layout := range []string{"2006-01", time.DateOnly} {
		if t, err := time.Parse(layout, since); err == nil {
			return t.Format("2006-01"), nil
		}
	}
	// A number alone is a year to some, and seconds to a duration.
	if d, err := api.ParseDuration(since); err == nil && d >= 0 && strings.ContainsAny(since, "smhd") {
		return now.Add(-d.Std()).UTC().Format("2006-01"), nil
	}
	return "", fmt.Errorf("--since %q: write a month as 2026-09, a day as 2026-09-01, or how long ago as 30d", since)
}

// printCost prints what was spent as a table. The last row is all of it: what no row names has rows
// of its own, so that the rows add up to the last one.
func printCost(a *cli.App, c *api.Cost) {
	// An empty table would not say from when on nothing was spent.
	if c.Total == (api.CostAmount{}) {
		fmt.Fprintf(a.Stderr, "muster: no node has cost anything since %s\n", c.Since.UTC().Format(time.DateOnly))
		return
	}
	// Idle time belongs to a pool or a month. No job and no namespace is to blame for it, so there
	// it is one row for all.
	withIdle := c.By == "pool" || c.By == "month"
	headers := []string{strings.ToUpper(c.By), "COST", "NODE TIME", "OF ALL"}
	if withIdle {
		headers = append(headers, "IDLE", "OF IT")
	}
	// Cost, hours and parts stand in each row alike, whatever the row is about.
	row := func(name string, s api.CostAmount, idle *api.CostAmount) []string {
		out := []string{name, few(s.Cost), term.Brief(time.Duration(s.Hours * float64(time.Hour))), costPart(s, c.Total)}
		if withIdle && idle != nil {
			out = append(out, few(idle.Cost), costPart(*idle, s))
		}
		// A row must have a cell for each header.
		for len(out) < len(headers) {
			out = append(out, "")
		}
		return out
	}
	var rows [][]string
	for i := range c.Rows {
		rows = append(rows, row(costName(c.By, &c.Rows[i]), c.Rows[i].CostAmount, c.Rows[i].Idle))
	}
	if c.More != nil {
		rows = append(rows, row(fmt.Sprintf("(%d more)", c.More.Rows), c.More.CostAmount, nil))
	}
	if !withIdle {
		rows = append(rows, row("(idle)", c.Idle, nil))
	}
	a.PrintTable(headers, append(rows, row("(all)", c.Total, &c.Idle)))
	fmt.Fprintf(a.Stdout, "from %s to %s UTC\n", c.Since.UTC().Format(time.DateOnly), c.Until.UTC().Format("2006-01-02 15:04"))
}

// costName is what a row is about. Old rows may have lost their job or their namespace: the server
// adds up what is small and long ago.
func costName(by string, r *api.CostRow) string {
	switch {
	case by == "pool":
		return r.Pool
	case by == "month":
		return r.Month
	// No namespace, and so no job: what was small and long ago, added up.
	case r.Namespace == "":
		return "(others)"
	case by == "namespace":
		return r.Namespace
	case r.Job == "":
		return "(others in " + r.Namespace + ")"
	}
	return muster.JobKey{Namespace: muster.Namespace(r.Namespace), Name: r.Job}.String()
}

// costPart is how much of all a part cost; if nothing has a price, how much of the time it was. "-"
// where neither is known.
func costPart(part, all api.CostAmount) string {
	p, whole := part.Cost, all.Cost
	if whole == 0 {
		p, whole = part.Hours, all.Hours
	}
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*p/whole)
}

// few is an amount in few digits: two after the point, and four of what is less than one. An amount
// that four digits would show as 0 is said to be smaller, because it is not nothing.
func few(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.0001:
		return "<0.0001"
	case v < 1:
		return fmt.Sprintf("%.4f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
