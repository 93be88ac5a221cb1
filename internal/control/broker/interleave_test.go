package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/control/apply"
	"github.com/musterhq/muster/internal/control/apply/memlog"
	"github.com/musterhq/muster/internal/control/schedule"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

// Every interleaving: two workers, with a view each or one that stands by and shares the other's; two jobs, room for one, different priority. Whatever comes
// first, whoever is faster, the higher one has the room, unless the lower one's plan was
// verified before the log had the higher one at all.
//
// The steps of all who take part are parked at gates and released one at a time, by a
// search over all orders; places that were seen before are not searched again.
func TestEveryInterleavingOfTwoWorkers(t *testing.T) {
	cases := []struct {
		name, before string
		env          []string // each comes at any time
	}{
		{"room is there", "node n1 cpu=1 memory=1GiB", []string{"job low priority=20", "job high priority=80"}},
		{"room is freed", "node n1 cpu=1 memory=1GiB\njob old priority=50\nplace old 0 n1", []string{"job low priority=20", "job high priority=80", "end old 0 succeeded"}},
		{"a node comes", "", []string{"job low priority=20", "job high priority=80", "node n1 cpu=1 memory=1GiB"}},
	}
	for _, standby := range []bool{false, true} {
		for _, tc := range cases {
			t.Run(fmt.Sprintf("%s, standby %v", tc.name, standby), func(t *testing.T) {
				if testing.Short() && len(tc.env) > 2 {
					t.Skip("thousands of runs")
				}
				s := searched(t, standby, tc.before, tc.env)
				if standby { // the shorter searches
					if got, want := searched(t, standby, tc.before, tc.env).counts(), s.counts(); got != want {
						t.Errorf("searched again: %s; the first time %s", got, want)
					}
				}
				t.Log(s.counts())
				if s.ends < 5 || s.yielded == 0 || standby && s.ahead == 0 {
					t.Errorf("%s: nothing was tried", s.counts())
				}
			})
		}
	}
}

// searched goes through all interleavings of a case.
func searched(t *testing.T, standby bool, before string, env []string) *search {
	s := &search{standby: standby, seen: map[string]bool{}}
	for s.more() && !t.Failed() {
		synctest.Test(t, func(t *testing.T) { s.run(t, before, env) })
	}
	return s
}

// search goes through all choices, by replay.
type search struct {
	standby bool
	path    []choice
	seen    map[string]bool
	runs    int
	ends    int
	yielded int
	ahead   int
}

// counts are those of the whole search. They are the same each time.
func (s *search) counts() string {
	return fmt.Sprintf("%d runs, %d places, %d ends, %d plans yielded, %d windows went ahead", s.runs, len(s.seen), s.ends, s.yielded, s.ahead)
}

type choice struct{ took, of int }

// more moves on to the next path that was not tried.
func (s *search) more() bool {
	if s.runs == 0 {
		return true
	}
	for len(s.path) > 0 {
		last := &s.path[len(s.path)-1]
		if last.took++; last.took < last.of {
			return true
		}
		s.path = s.path[:len(s.path)-1]
	}
	return false
}

// play is one run.
type play struct {
	t      *testing.T
	log    *memlog.Log
	b      *Broker
	parked map[string]chan struct{}
	what   map[string]string
	open   bool // gates stand open: the run is over
	env    []string
	trace  []string
	// verified: the log had the higher job when plans of the lower were last verified.
	verified bool
	yielded  int
	ahead    int // windows that went ahead of others
}

func (s *search) run(t *testing.T, before string, env []string) {
	s.runs++
	p := &play{t: t, log: memlog.New(t, 1<<8), parked: map[string]chan struct{}{}, what: map[string]string{}, env: slices.Clone(env)}
	p.do(before)
	p.b = driven(t, Config{}, p.log)
	a, err := apply.New(apply.Config{Snapshots: p.log, Proposer: p, Deliveries: p})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	names := []string{"w0", "w1"}
	if s.standby {
		names = names[:1]
	}
	for _, name := range names {
		w := &gated{p, name, a, s.standby, map[uint64]string{}}
		sched, err := schedule.New(schedule.Config{State: p.log, Queue: w, Submit: w})
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error { return sched.Run(ctx) })
	}
	ended := s.steer(p)
	p.release()
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	s.yielded += p.yielded
	s.ahead += p.ahead
	if ended {
		s.ends++
		p.verdict()
	}
	if t.Failed() {
		t.Logf("steps:\n%s", strings.Join(p.trace, "\n"))
	}
}

// steer releases one step after the other until nothing moves any more; false if the run came to a place that was seen.
func (s *search) steer(p *play) bool {
	idle := 0
	for depth := 0; ; {
		synctest.Wait()
		if p.t.Failed() {
			return false
		}
		options := p.options()
		if len(options) == 0 {
			// Who yielded twice waits a while.
			if idle++; idle > 3 {
				return true
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		idle = 0
		if depth == len(s.path) {
			if place := p.place(options); s.seen[place] {
				return false
			} else {
				s.seen[place] = true
			}
			s.path = append(s.path, choice{0, len(options)})
		}
		c := s.path[depth]
		if c.of != len(options) {
			p.t.Errorf("the run is not the same again: %d options, there were %d", len(options), c.of)
			return false
		}
		depth++
		p.trace = append(p.trace, options[c.took])
		p.take(options[c.took])
	}
}

// options are the steps that can come next.
func (p *play) options() []string {
	p.b.mu.Lock()
	behind := p.b.followed < p.log.Latest().Index()
	idle := map[string]bool{"w0 asks": !p.b.servesLocked(&p.b.workers), "w1 asks": !p.b.servesLocked(&p.b.workers), "standby asks": !p.b.servesLocked(&p.b.standby)}
	p.b.mu.Unlock()
	var out []string
	for name := range p.parked {
		if !idle[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	if behind {
		out = append(out, "follow")
	}
	for _, line := range p.env {
		out = append(out, "env "+line)
	}
	return out
}

func (p *play) take(step string) {
	switch line, env := strings.CutPrefix(step, "env "); {
	case env:
		p.env = slices.DeleteFunc(slices.Clone(p.env), func(l string) bool { return l == line })
		p.do(line)
	case step == "follow":
		p.b.mu.Lock()
		if _, err := p.b.followLocked(); err != nil {
			p.t.Error(err)
		}
		p.b.tellWorkersLocked()
		p.b.mu.Unlock()
	default:
		// Off the list first: who goes on may come to its next gate at once.
		p.b.mu.Lock()
		ch := p.parked[step]
		delete(p.parked, step)
		p.b.mu.Unlock()
		close(ch)
	}
}

// place names all that the run can still depend on.
func (p *play) place(options []string) string {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	var out []string
	for _, o := range options {
		out = append(out, o+" "+p.what[o])
	}
	for uid, e := range p.b.entries {
		out = append(out, fmt.Sprintf("%s stage %d tried %d again %v woken %v", uid, e.stage, e.tried, e.changed, e.woken))
	}
	slices.Sort(out[len(options):])
	snap := p.log.Latest()
	snap.LiveAllocs(func(a *state.Alloc) bool { out = append(out, string(a.ID)); return true })
	return fmt.Sprint(out, snap.Index(), p.b.followed, p.verified)
}

// gate parks whoever calls it until the search lets it go on.
func (p *play) gate(ctx context.Context, name, what string) {
	if p.open {
		return
	}
	ch := make(chan struct{})
	p.b.mu.Lock()
	p.parked[name], p.what[name] = ch, what
	p.b.mu.Unlock()
	select {
	case <-ch:
	case <-ctx.Done():
	}
}

func (p *play) release() {
	p.b.mu.Lock()
	p.open = true
	for _, ch := range p.parked {
		close(ch)
	}
	p.parked = map[string]chan struct{}{}
	p.b.mu.Unlock()
}

func (p *play) do(text string) {
	facts(p.t, p.log, text, func(f state.Fact) { p.log.Must(p.t, f) })
}

// Over and Ahead are the broker's, looked over the shoulder.
func (p *play) Over(token uint64, jobs []muster.JobUID) []muster.JobUID {
	return p.b.Over(token, jobs)
}

func (p *play) Ahead(snap *state.Snapshot, priority int) ([]verify.Need, bool) {
	if priority == 20 {
		j := snap.JobByUID("high")
		p.verified = j != nil && j.Waiting() > 0
	}
	return p.b.Ahead(snap, priority)
}

// Propose commits a plan, with a stop before and after.
func (p *play) Propose(ctx context.Context, f state.Fact) (uint64, any, error) {
	c := f.(*state.PlanCommitted)
	what := fmt.Sprint(c.Placements, c.Stops)
	p.gate(ctx, "commit "+what, "") // two may be on their way at once
	if len(c.Placements) > 0 && c.Placements[0].UID == "low" && p.verified && !p.open {
		p.t.Errorf("the lower one's plan holds although the higher one was there")
	}
	index, v, err := p.log.Propose(ctx, f)
	p.gate(ctx, "committed "+what, "")
	return index, v, err
}

// verdict looks at a run that came to rest.
func (p *play) verdict() {
	snap := p.log.Latest()
	var has []muster.JobUID
	snap.LiveAllocs(func(a *state.Alloc) bool { has = append(has, a.UID); return true })
	if len(has) != 1 {
		p.t.Errorf("the room has %v at the end", has)
		return
	}
	if has[0] == "low" && p.verified {
		p.t.Error("the lower one has the room, and the higher one was there when that was decided")
	}
	if s := p.b.Stats(); s.Blocked != 1 || s.Ready+s.Out+s.Delayed+s.Parked != 0 {
		p.t.Errorf("at rest: %+v", s)
	}
}

// gated is the way of one scheduler's workers to the broker and the applier.
type gated struct {
	*play
	name    string
	applier *apply.Applier
	standby bool
	has     map[uint64]string // the worker that has a window; under the broker's mu
}

func (w *gated) Dequeue(ctx context.Context, limit int) (place.Window, error) {
	return w.dequeue(ctx, w.name, func() (place.Window, error) { return w.b.Dequeue(ctx, limit) })
}

func (w *gated) DequeueAhead(ctx context.Context, limit int) (place.Window, error) {
	if !w.standby {
		<-ctx.Done()
		return place.Window{}, ctx.Err()
	}
	return w.dequeue(ctx, "standby", func() (place.Window, error) {
		win, err := w.b.DequeueAhead(ctx, limit)
		if err == nil && !w.open {
			w.b.mu.Lock()
			w.ahead++
			for token, o := range w.b.windows {
				if token != win.Token && o.priority >= w.b.windows[win.Token].priority {
					w.t.Errorf("%v went ahead of a window of priority %d", win.Jobs, o.priority)
				}
			}
			w.b.mu.Unlock()
		}
		return win, err
	})
}

func (w *gated) dequeue(ctx context.Context, name string, take func() (place.Window, error)) (place.Window, error) {
	w.gate(ctx, name+" asks", "") // opens when something is ready: who of two that wait is served is a choice as well
	win, err := take()
	if err == nil {
		w.b.mu.Lock()
		w.has[win.Token] = name
		w.b.mu.Unlock()
		w.gate(ctx, name+" plans", fmt.Sprint(win.Jobs))
	}
	return win, err
}

func (w *gated) who(token uint64) string {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	return w.has[token]
}

func (w *gated) Submit(ctx context.Context, s verify.Submission) (verify.Verdict, error) {
	name := w.who(s.Token)
	w.gate(ctx, name+" submits", fmt.Sprint(s.Placements))
	v, err := w.applier.Submit(ctx, s)
	w.b.mu.Lock()
	if v.Yielded && !w.open {
		w.yielded++ // what yields once the gates stand open is no step of the search, and not the same each time
	}
	w.b.mu.Unlock()
	w.gate(ctx, name+" answers", fmt.Sprint(v.Placements, v.Refused, v.Yielded, err))
	return v, err
}

func (w *gated) Pause(token uint64) (func() error, error) { return w.b.Pause(token) }

func (w *gated) Ack(token uint64, jobs ...muster.JobUID) error { return w.b.Ack(token, jobs...) }

func (w *gated) Nack(token uint64, reason string, jobs ...muster.JobUID) error {
	return w.b.Nack(token, reason, jobs...)
}

func (w *gated) Block(token uint64, tried uint64, jobs []place.Blocked) error {
	w.gate(context.Background(), w.who(token)+" blocks", fmt.Sprint(tried, len(jobs)))
	return w.b.Block(token, tried, jobs)
}
