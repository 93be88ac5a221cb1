package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// follow waits for the job's end and shows how far it is: a bar on a terminal,
// a line now and then elsewhere.
func follow(ctx context.Context, c *client.Client, key muster.JobKey, members int) (*api.Job, error) {
	st, err := os.Stdout.Stat()
	terminal := err == nil && st.Mode()&os.ModeCharDevice != 0
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	told := -1
	for {
		j, err := c.Job(ctx, key)
		if err != nil {
			return nil, err
		}
		ended := j.Counts.Succeeded + j.Counts.Failed + j.Counts.Stopped
		if terminal {
			full := 40 * ended / members
			fmt.Printf("\r[%s%s] %d of %d members, %d running ", strings.Repeat("#", full), strings.Repeat(".", 40-full), ended, members, j.Counts.Running)
		} else if ended != told {
			told = ended
			fmt.Printf("%d of %d members ended, %d running\n", ended, members, j.Counts.Running)
		}
		if j.Stage == string(muster.JobEnded) {
			if terminal {
				fmt.Println()
			}
			return j, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func took(j *api.Job) time.Duration {
	if j.Ended == nil {
		return 0
	}
	return j.Ended.Sub(j.Submitted).Round(100 * time.Millisecond)
}

func show(ctx context.Context, c *client.Client, key muster.JobKey) error {
	var allocs []api.Alloc
	for a, err := range c.AllJobAllocs(ctx, key, client.AllocQuery{}) {
		if err != nil {
			return err
		}
		allocs = append(allocs, a)
	}
	var nodes []api.Node
	for n, err := range c.AllNodes(ctx, client.NodeQuery{}) {
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b api.Node) int { return a.Launched.Compare(b.Launched) })
	if err := members(ctx, c, allocs); err != nil {
		return err
	}
	timeline(nodes, allocs)
	bill(nodes)
	return nil
}

// members is the table of what each did.
func members(ctx context.Context, c *client.Client, allocs []api.Alloc) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nMEMBER\tATTEMPT\tNODE\tSECONDS\tEXIT\tFINDINGS\tOUTCOME")
	total := 0
	for _, a := range allocs {
		found, err := findings(ctx, c, muster.AllocID(a.ID))
		if err != nil {
			return err
		}
		total += found
		exit := "-"
		if a.ExitCode != nil {
			exit = fmt.Sprint(*a.ExitCode)
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%.1f\t%s\t%d\t%s\n", a.Index, a.Attempt, a.Node, seconds(a), exit, found, a.Outcome)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d findings\n", total)
	return nil
}

func seconds(a api.Alloc) float64 {
	if a.Started == nil || a.Ended == nil {
		return 0
	}
	return a.Ended.Sub(*a.Started).Seconds()
}

// findings counts what vet said: lines of "file:line: …", read from the stored
// output, as the nodes are gone by now.
func findings(ctx context.Context, c *client.Client, id muster.AllocID) (int, error) {
	out, err := c.Output(ctx, client.OutputQuery{Alloc: id, Stream: client.Stderr})
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	n := 0
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if !strings.HasPrefix(sc.Text(), "#") && strings.Count(sc.Text(), ":") >= 2 {
			n++
		}
	}
	return n, sc.Err()
}

// timeline draws each node from its launch to its end: when it was booting (b),
// busy with how many members (1-9), idle (.).
func timeline(nodes []api.Node, allocs []api.Alloc) {
	if len(nodes) == 0 {
		return
	}
	const width = 72
	from, to := nodes[0].Launched, nodes[0].Launched
	for _, n := range nodes {
		if n.Gone != nil && n.Gone.After(to) {
			to = *n.Gone
		}
	}
	step := max(to.Sub(from)/width, time.Millisecond)
	fmt.Printf("\nNodes, one column = %s (b booting, 1-9 members running, . idle):\n", step.Round(10*time.Millisecond))
	for _, n := range nodes {
		var line strings.Builder
		for i := range width {
			line.WriteByte(at(n, allocs, from.Add(time.Duration(i)*step), step))
		}
		fmt.Printf("%-14s %-6s %s\n", n.ID, n.Offering, strings.TrimRight(line.String(), " "))
	}
}

// at is a node's column that begins at t.
func at(n api.Node, allocs []api.Alloc, t time.Time, step time.Duration) byte {
	end := t.Add(step)
	switch {
	case !n.Launched.Before(end), n.Gone != nil && n.Gone.Before(t):
		return ' '
	case n.Joined == nil || n.Joined.After(end):
		return 'b'
	}
	running := 0
	for _, a := range allocs {
		if a.Node == n.ID && a.Started != nil && a.Started.Before(end) && (a.Ended == nil || a.Ended.After(t)) {
			running++
		}
	}
	if running == 0 {
		return '.'
	}
	return "0123456789"[min(running, 9)]
}

// bill is what the instances would have cost at the offerings' list price.
func bill(nodes []api.Node) {
	type line struct {
		count   int
		seconds float64
		price   float64
	}
	bills := map[string]*line{}
	for _, n := range nodes {
		b := bills[n.Offering]
		if b == nil {
			b = &line{price: n.Price}
			bills[n.Offering] = b
		}
		b.count++
		if n.Gone != nil {
			b.seconds += n.Gone.Sub(n.Launched).Seconds()
		}
	}
	names := make([]string, 0, len(bills))
	for name := range bills {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nOFFERING\tINSTANCES\tINSTANCE-SECONDS\tPRICE AN HOUR\tPRICE")
	var all, cost float64
	for _, name := range names {
		b := bills[name]
		fmt.Fprintf(w, "%s\t%d\t%.1f\t%g\t%.6f\n", name, b.count, b.seconds, b.price, b.seconds/3600*b.price)
		all, cost = all+b.seconds, cost+b.seconds/3600*b.price
	}
	fmt.Fprintf(w, "together\t\t%.1f\t\t%.6f\n", all, cost)
	_ = w.Flush()
}
