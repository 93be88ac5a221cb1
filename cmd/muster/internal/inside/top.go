package inside

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/wait"
)

// topCommand makes muster top.
func topCommand(a *cli.App) *cobra.Command {
	t := &watcher{app: a}
	c := a.Command("top [ALLOC|JOB...]", "Show the resource usage of allocations", `Shows the CPU, memory, processes and disk that running allocations use now: all of them, or those named by id, as JOB/INDEX, or as JOB for all of its members. Runners are named by their id, with their environment. 100 % of CPU is one core.

On a terminal the table is updated each second, until q or Ctrl-C; otherwise, and with --once, it is printed once.`, cobra.ArbitraryArgs, func(ctx context.Context, args []string) error {
		return t.run(ctx, args)
	})
	c.Flags().BoolVar(&t.once, "once", false, "print the table once, also on a terminal")
	cli.DurationVar(c.Flags(), &t.every, "every", time.Second, "interval of updates, over which CPU is measured")
	a.NamespaceFlag(c, "namespace of the job")
	return c
}

// watcher is one use of muster top.
type watcher struct {
	app *cli.App
	// once prints one table also on a terminal.
	once bool
	// every is the time between two looks, over which the use of a processor is counted.
	every time.Duration

	// last is what was measured in the look before, by allocation: the use of a processor shows
	// between two looks.
	cl   *client.Client
	last map[string]*api.AllocStats // by allocation
}

// used is what `muster top --json` prints of one allocation.
type used struct {
	Alloc     string `json:"alloc"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Index     int    `json:"index"`
	Node      string `json:"node"`
	// CPU is in percent of one core; it is not known at the first look.
	CPU     *float64        `json:"cpu_percent,omitempty"`
	Stats   *api.AllocStats `json:"stats,omitempty"`
	Problem string          `json:"problem,omitempty"`

	started *time.Time
}

// maxTop is how many allocations are shown, because each is asked for by itself; asking is how many
// are asked for at once.
const (
	// maxTop is how many allocations are shown: each is asked for by itself.
	maxTop = 200
	// asking is how many are asked for at once.
	asking = 16
)

// run prints the table once, or draws it until a signal. Printed once, it takes two looks.
func (w *watcher) run(ctx context.Context, args []string) error {
	if w.every < 10*time.Millisecond {
		return cli.Usage(fmt.Errorf("--every is %s; it is 10ms or more", w.every))
	}
	var err error
	if w.cl, err = w.app.Connect(); err != nil {
		return err
	}
	w.last = map[string]*api.AllocStats{}
	// A file or a program gets one table.
	live := term.IsTerminal(w.app.Stdout) && !w.once && !w.app.JSON
	rows, more, err := w.look(ctx, args)
	if err != nil {
		return err
	}
	// On a terminal the empty table stays: something may start.
	if len(rows) == 0 && !live {
		if w.app.JSON {
			return w.app.PrintJSON([]used{})
		}
		fmt.Fprintln(w.app.Stderr, "muster: no allocation runs")
		return nil
	}
	if live {
		return w.watch(ctx, args, rows, more)
	}
	// What is used of a processor shows between two looks.
	if !wait.For(ctx, w.every) {
		return ctx.Err()
	}
	if rows, more, err = w.look(ctx, args); err != nil {
		return err
	}
	if w.app.JSON {
		return w.app.PrintJSON(rows)
	}
	headers, cells := w.table(rows)
	w.app.PrintTable(headers, cells)
	if more > 0 {
		fmt.Fprintf(w.app.Stderr, "muster: … and %d more; name a job\n", more)
	}
	return nil
}

// watch draws the table again and again, on the terminal's other screen, so that what was there
// before comes back. A server that is away is said below the table, and what was known last stays.
func (w *watcher) watch(ctx context.Context, args []string, rows []used, more int) error {
	const other, back = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	_, _ = io.WriteString(w.app.Stdout, other)
	defer func() { _, _ = io.WriteString(w.app.Stdout, back) }()
	var keys <-chan byte // never one, where stdin is no terminal
	if t := term.TerminalOf(w.app.Stdin); t != nil {
		var err error
		if keys, err = t.Keys(); err != nil {
			return err
		}
		defer t.Restore()
	}
	// A look that takes longer than that delays the next one, and none is made up for.
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	problem := ""
	for {
		if err := w.draw(rows, more, problem); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case key, more := <-keys:
			if key == 'q' {
				return nil
			}
			if !more {
				keys = nil
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		now, n, err := w.look(ctx, args)
		switch {
		case err == nil:
			rows, more, problem = now, n, ""
		case ctx.Err() != nil:
			return ctx.Err()
		case client.IsUnreachable(err):
			problem = err.Error() // the last that was known stays
		default:
			return err
		}
	}
}

// draw writes a whole screen with one write. Rows that do not fit are counted and left out.
func (w *watcher) draw(rows []used, more int, problem string) error {
	height := term.Height(w.app.Stdout)
	// The headers, the line of what is left out and a problem need room too.
	if room := height - 4; height > 0 && len(rows) > room && room > 0 {
		more += len(rows) - room
		rows = rows[:room]
	}
	var b bytes.Buffer
	headers, cells := w.table(rows)
	for _, r := range cells {
		for i := range r {
			r[i] = term.OneLine(r[i])
		}
	}
	term.WritePlainTable(&b, headers, cells)
	if len(rows) == 0 {
		b.WriteString("no allocation runs\n")
	}
	if more > 0 {
		fmt.Fprintf(&b, "… and %d more\n", more)
	}
	if problem != "" {
		fmt.Fprintf(&b, "%s\n", term.Clean(problem))
	}
	// Each line ends the old one, and the last one all below it: nothing flickers.
	text := "\x1b[H" + strings.ReplaceAll(b.String(), "\n", "\x1b[K\r\n") + "\x1b[J"
	_, err := io.WriteString(w.app.Stdout, text)
	return err
}

// look asks what is used now. More is how many allocations are not shown. One that has ended since
// it was listed is left out; another error is shown in its row.
func (w *watcher) look(ctx context.Context, args []string) (rows []used, more int, err error) {
	allocs, err := w.allocs(ctx, args)
	if err != nil {
		return nil, 0, err
	}
	// A row stays where it is from look to look, unless others come or go.
	slices.SortFunc(allocs, func(x, y api.Alloc) int {
		if c := strings.Compare(x.Namespace+"/"+x.Job, y.Namespace+"/"+y.Job); c != 0 {
			return c
		}
		return x.Index - y.Index
	})
	// The first by name are shown, so that it is the same ones each time.
	if len(allocs) > maxTop {
		more, allocs = len(allocs)-maxTop, allocs[:maxTop]
	}
	rows = make([]used, len(allocs))
	errs := make([]error, len(allocs))
	// It bounds the requests that are made at the same time.
	places := make(chan struct{}, asking)
	var wg sync.WaitGroup
	for i := range allocs {
		al := &allocs[i]
		rows[i] = used{Alloc: al.ID, Namespace: al.Namespace, Job: al.Job, Index: al.Index, Node: al.Node, started: al.Started}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			// Each look tries once: the next one is a second away.
			rows[i].Stats, errs[i] = w.cl.Patient(-1).Stats(ctx, muster.AllocID(al.ID))
		})
	}
	wg.Wait()
	now := map[string]*api.AllocStats{}
	// What has ended since is left out.
	kept := rows[:0]
	for i := range rows {
		u := rows[i]
		switch err := errs[i]; {
		case err == nil:
			now[u.Alloc] = u.Stats
			u.CPU = percent(w.last[u.Alloc], u.Stats)
		case ctx.Err() != nil:
			return nil, 0, ctx.Err()
		case client.IsUnreachable(err):
			return nil, 0, err
		case client.IsGone(err) || client.IsNotFound(err):
			continue // it ended a moment ago
		default:
			u.Stats, u.Problem = nil, err.Error()
		}
		kept = append(kept, u)
	}
	w.last = now
	return kept, more, nil
}

// percent is how much of one core was used between two looks; nil if there was none before, or no
// time has passed.
func percent(before, now *api.AllocStats) *float64 {
	if before == nil {
		return nil
	}
	// The node's clock counts: it has measured both.
	took := now.At.Sub(before.At).Seconds()
	if took <= 0 {
		return nil
	}
	p := max(0, 100*(now.CPUSeconds-before.CPUSeconds)/took)
	return &p
}

// allocs are the running allocations that are meant: all, or those that are named. An argument may
// name a job, and then all of its members are meant.
func (w *watcher) allocs(ctx context.Context, args []string) ([]api.Alloc, error) {
	var out []api.Alloc
	seen := map[string]bool{}
	// A job and one of its members may both be named.
	add := func(al api.Alloc) {
		if al.Status == string(muster.AllocRunning) && !seen[al.ID] {
			seen[al.ID] = true
			out = append(out, al)
		}
	}
	if len(args) == 0 {
		for al, err := range w.cl.AllAllocs(ctx, client.AllocQuery{Live: true}) {
			if err != nil {
				return nil, err
			}
			if w.app.Namespace == "" || al.Namespace == w.app.Namespace {
				add(al)
			}
		}
		return out, nil
	}
	for _, name := range args {
		if key, err := w.app.JobKey(name); err == nil {
			job, err := w.cl.Job(ctx, key)
			if err == nil {
				for al, err := range w.cl.AllJobAllocs(ctx, key, client.AllocQuery{}) {
					if err != nil {
						return nil, err
					}
					// Members of an earlier version that still run are on their way out.
					if al.Version == job.Version {
						add(al)
					}
				}
				continue
			}
			if !client.IsNotFound(err) {
				return nil, err
			}
		}
		t, err := w.app.FindTarget(ctx, w.cl, name)
		if err != nil {
			return nil, err
		}
		add(*t.Alloc)
	}
	return out, nil
}

// member is what other commands take: JOB/INDEX, or the id of a runner with its environment.
func (u *used) member() string {
	key := cli.JobKeyOf(u.Namespace, u.Job)
	if environment, is := key.Environment(); is {
		return fmt.Sprintf("%s (%s)", u.Alloc, cli.EnvironmentName(u.Namespace, environment))
	}
	return fmt.Sprintf("%s/%d", key, u.Index)
}

// table lays out rows. What is not known is "-".
func (w *watcher) table(rows []used) (headers []string, cells [][]string) {
	now := time.Now()
	// The limit stands beside what is used, where there is one.
	of := func(n, most int64) string {
		if most == 0 {
			return muster.Bytes(n).String()
		}
		return fmt.Sprintf("%s / %s", muster.Bytes(n), muster.Bytes(most))
	}
	for i := range rows {
		u := &rows[i]
		line := []string{u.member(), u.Node, "-", "-", "-", "-", "-", "-", term.Ago(u.started, now)}
		if s := u.Stats; s != nil {
			if u.CPU != nil {
				line[2] = fmt.Sprintf("%.1f%%", *u.CPU)
			}
			// What is set aside, and the most that it may use if that is limited.
			line[3] = fmt.Sprintf("%g%s", s.CPU, term.SuffixIf(s.CPUMax > 0, fmt.Sprintf(" (at most %g)", s.CPUMax)))
			line[4] = of(s.Memory, s.MemoryMax)
			if s.MemoryMax > 0 {
				line[5] = fmt.Sprintf("%.0f%%", 100*float64(s.Memory)/float64(s.MemoryMax))
			}
			if s.Pids > 0 {
				line[6] = fmt.Sprint(s.Pids, term.SuffixIf(s.PidsMax > 0, fmt.Sprintf(" / %d", s.PidsMax)))
			}
			if s.Disk > 0 {
				line[7] = of(s.Disk, s.DiskMax)
			}
		}
		// What is wrong with one allocation takes the place of its figures.
		if u.Problem != "" {
			line = append(line[:2], "-", "-", u.Problem, "-", "-", "-", line[8])
		}
		cells = append(cells, line)
	}
	return []string{"MEMBER", "NODE", "CPU", "CORES", "MEMORY / LIMIT", "MEM", "PIDS", "DISK", "RAN"}, cells
}
