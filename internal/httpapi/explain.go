package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/expect"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/decide/roll"
	"github.com/musterhq/muster/internal/decide/size"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

func (a *API) explainRoutes() {
	job := operation(http.MethodGet, "/v1/jobs/{namespace}/{name}/explain", "explain-job", tagJobs, "Explain what a job waits for",
		"One record from the queue to the cloud: what is before it, what stands between a member and each node, by class of equal nodes, and which would be taken by what; what could be launched and what is in the way, what is on its way, and when a member may start. Of a member that has an allocation: where it would go now if it had none; what the plan saw that put it there is not kept.")
	job.Errors = append(job.Errors, http.StatusNotFound)
	register(a, job, a.explainJob)

	node := operation(http.MethodGet, "/v1/nodes/{id}/explain", "explain-node", tagNodes, "Explain a node",
		"Its three dials, who turned them and why, what runs there, what it waits for, and when it will be ended, or why not.")
	node.Errors = append(node.Errors, http.StatusNotFound)
	register(a, node, a.explainNode)
}

type jobExplanationOut struct{ Body api.JobExplanation }

type explainJobIn struct {
	JobPath
	Member int `query:"member" default:"-1" minimum:"-1" doc:"Explain this one of its members. Default: the job."`
}

func (a *API) explainJob(ctx context.Context, in *explainJobIn) (*jobExplanationOut, error) {
	snap, now := a.cfg.State.Latest(), a.cfg.Clock.Now()
	j, err := in.findAny(snap)
	if err != nil {
		return nil, err
	}
	if in.Member >= j.Count() {
		return nil, muster.Faultf(muster.FaultNotFound, "member %d of job %s: not found; it has %s, counted from 0", in.Member, j.Key, muster.Counted(j.Count(), "member"))
	}
	if err := a.planning.begin(ctx); err != nil {
		return nil, err
	}
	defer a.planning.end()
	d, blocks := a.cfg.Insight.Fleet()
	e := &explainer{snap: snap, job: j, shape: fit.ShapeOf(j.Run), decisions: d, blocks: blocks, now: now, paused: a.cfg.Insight.Paused()}
	e.out = api.JobExplanation{
		Namespace: string(j.Key.Namespace), Job: j.Key.Name, Version: j.Version, Stage: string(j.Stage), Priority: j.Priority(),
		Counts: present.Job(j).Counts, Text: []string{}, Offerings: []api.OfferingSight{}, Coming: []api.NodeComing{},
		Fleet: []api.Wait{}, Blocks: []api.Block{}, Index: snap.Index(),
	}
	if in.Member >= 0 {
		e.out.Member = &in.Member
		e.member(in.Member)
	} else {
		e.explain()
	}
	return &jobExplanationOut{e.out}, nil
}

// findAny finds an environment as well, by the name that its job has.
func (p *JobPath) findAny(snap *state.Snapshot) (*state.Job, error) {
	if name, is := (muster.JobKey{Name: p.Name}).Environment(); is {
		e := EnvironmentPath{p.Namespace, name}
		return e.find(snap)
	}
	return p.find(snap)
}

// words name what is explained, at the beginning of a sentence.
func (e *explainer) words() string {
	if name, is := e.job.Key.Environment(); is {
		return "Environment " + muster.JobKey{Namespace: e.job.Key.Namespace, Name: name}.String()
	}
	return "Job " + e.job.Key.String()
}

// stock says how an environment's runners are, and what became of the last one that could not be started.
func (e *explainer) stock() {
	j := e.job
	if j.Env == nil {
		return
	}
	c := j.Runners()
	e.say("%s wants %s warm: %s. %d warm, %d starting, %d claimed.", e.words(), muster.Counted(j.Env.Stock, "runner"), j.Env.Why, c.Warm, c.Starting, c.Claimed)
	if j.Env.Failures > 0 && j.Env.Failure != "" {
		e.say("The last runner that was started failed: %s. The next one is started in %s.", j.Env.Failure, e.in(j.Env.StartAt()))
	}
}

// explainer puts the record of one job together.
type explainer struct {
	snap      *state.Snapshot
	job       *state.Job
	shape     *fit.Shape
	decisions *size.Decisions
	blocks    []size.Block
	now       muster.Time
	paused    string // why nothing is placed; "" if it is
	out       api.JobExplanation
}

func (e *explainer) say(format string, args ...any) {
	e.out.Text = append(e.out.Text, fmt.Sprintf(format, args...))
}

// maxAtRisk bounds the nodes that an explanation names.
const maxAtRisk = 5

// atRisk tells which of the job's live allocations are on nodes that are lost or being destroyed.
func (e *explainer) atRisk() {
	nodes := 0
	e.snap.LiveNodes(func(n *state.Node) bool {
		why := present.NodeProblem(n)
		if why == "" || n.LiveAllocs == 0 {
			return true
		}
		k := 0
		e.snap.NodeAllocs(n.ID, func(a *state.Alloc) bool {
			if a.UID == e.job.UID {
				k++
			}
			return true
		})
		if k == 0 {
			return true
		}
		if nodes++; nodes > maxAtRisk {
			e.say("More of its members are on other nodes that are lost or being destroyed.")
			return false
		}
		e.say("%d of its members may be lost: %s.", k, why)
		return true
	})
}

// pause says so first: all that follows is of when it is over.
func (e *explainer) pause() {
	if e.paused != "" {
		e.say("Nothing is placed now: %s.", e.paused)
	}
}

func (e *explainer) explain() {
	j := e.job
	c := e.out.Counts
	switch {
	case j.Stage == muster.JobEnded:
		e.say("%s has ended: %s%s.", e.words(), j.Result, present.Because(j.Reason))
		return
	case j.Stage == muster.JobStopping:
		e.say("%s is stopping%s; %d of its allocations have not ended.", e.words(), present.Because(j.Reason), j.LiveAllocs)
		return
	case j.Waiting() == 0 && j.Env != nil:
		e.stock()
		return
	case j.Waiting() == 0:
		e.say("Nothing of job %s waits: of %s, %d run, %d are placed, %d succeeded, %d failed.", j.Key, muster.Counted(present.Job(j).Count, "member"), c.Running, c.Placed, c.Succeeded, c.Failed)
		e.atRisk()
		e.rollout()
		if j.LiveAllocs > 0 && !j.Run.System() {
			e.say("What follows is where another member would go now; what plans saw that placed those that are there is not kept.")
			e.placing(place.Explain(j, e.snap, e.now))
		}
		return
	}
	e.stock()
	e.say("%s has priority %d. Of %s, %d wait, %d run, %d succeeded, %d failed. A member asks for %s.",
		e.words(), j.Priority(), muster.Counted(present.Job(j).Count, "member"), c.Waiting, c.Running+c.Placed, c.Succeeded, c.Failed, j.Run.Ask)
	e.atRisk()
	e.rollout()
	e.pause()
	if e.queue() {
		return
	}
	if e.limits() {
		return
	}
	e.placing(place.Explain(j, e.snap, e.now))
	if e.out.Considered.Fitting > 0 && e.paused == "" {
		e.say("A member may be placed at any moment.")
	}
	if j.Run.System() {
		e.say("A system job has one member on each node that fits: no node is made for it.")
		return
	}
	e.offerings()
	e.coming()
	e.fleet()
	e.expect()
}

// rollout tells how far a service or system job is in running its version, unless all of it does.
func (e *explainer) rollout() {
	st := e.job.Standing
	if st == nil || st.Rollout == muster.RolloutDone {
		return
	}
	e.say("The rollout of version %d (%s): %s%s.", st.Version, st.Rollout, roll.ProgressOf(e.snap, e.job, e.now), present.Because(st.Reason))
}

// queue tells what is before the job. It reports whether that is all there is to say.
func (e *explainer) queue() (done bool) {
	j := e.job
	if j.Reserved != "" {
		e.say("Others were placed past it for long: what comes free on node %s is kept for it.", j.Reserved)
	}
	if j.Parked != "" {
		e.out.Parked, e.out.ParkedUntil = j.Parked, present.Time(j.ParkedUntil)
		until := "until it is submitted anew"
		if j.ParkedUntil != 0 {
			until = "for another " + e.in(j.ParkedUntil)
		}
		e.say("The scheduler has put it aside %s: %s.", until, j.Parked)
		return true
	}
	var next *state.Member
	e.snap.DueRetries(j.UID, 1<<62, func(m *state.Member) bool { next = m; return false })
	if next != nil {
		e.out.LastFailure = next.Reason
		if next.RetryAt > e.now {
			e.out.NextAttempt = present.Time(next.RetryAt)
			e.say("Member %d has failed%s; it is tried again in %s.", next.Index, present.Because(next.Reason), e.in(next.RetryAt))
			if j.Untried() == 0 {
				return true
			}
		} else {
			e.say("Member %d has failed%s, and waits for another attempt.", next.Index, present.Because(next.Reason))
		}
	}
	ahead := &api.QueueAhead{}
	e.snap.Unsettled(func(o *state.Job) bool {
		if o.UID != j.UID && place.Order(o, j) < 0 {
			ahead.Jobs++
			ahead.Members += o.Untried()
		}
		return true
	})
	e.out.Ahead = ahead
	if ahead.Jobs > 0 {
		e.say("Served before it: %s, with %s.", muster.Counted(ahead.Jobs, "waiting job"), muster.Counted(ahead.Members, "member"))
	} else {
		e.say("It is the first in the queue.")
	}
	return false
}

// limits tells by which limit of namespaces nothing more may be placed. It reports whether that is so.
func (e *explainer) limits() bool {
	n, bound := fit.NewAllowance(e.snap).Of(e.job.Key.Namespace, e.job.Run.Ask, e.job.Waiting())
	if bound.Namespace == "" {
		return false
	}
	e.out.Limit = bound.Why
	if n > 0 {
		e.say("Of the members that wait, %d may start before the limit is reached: %s.", n, bound.Why)
		return false
	}
	e.say("It waits for a limit, whatever room there is: %s. Work that ends makes room below it; `muster namespace set %s` changes it.", bound.Why, bound.Namespace)
	return true
}

// in is how long it is until a moment.
func (e *explainer) in(t muster.Time) string { return shortly(t.Sub(e.now)) }

// shortly is a duration for sentences.
func shortly(d time.Duration) string {
	if d = max(d, 0); d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// offerings tells what could be launched for it.
func (e *explainer) offerings() {
	live, launching := map[muster.PoolName]int{}, map[muster.PoolName]int{}
	e.snap.LiveNodes(func(n *state.Node) bool {
		live[n.Pool]++
		if n.Stage == muster.NodeLaunching {
			launching[n.Pool]++
		}
		return true
	})
	pools := 0
	e.snap.Pools(func(p *state.Pool) bool {
		if e.shape.Pool != "" && e.shape.Pool != p.Name {
			return true
		}
		pools++
		e.snap.Offerings(func(o *muster.Offering) bool {
			if p.Covers(o) {
				e.offering(p, o, live[p.Name], launching[p.Name])
			}
			return true
		})
		if b := e.snap.Breaker(p.Name); b.IsTripped() {
			e.say("The breaker of pool %s has tripped: %s. Nodes of it that are out of contact are not replaced until `muster pool resume %s`.", p.Name, b.Reason, p.Name)
		}
		return true
	})
	if pools == 0 {
		e.say("No pool that it may use is configured.")
	}
	var obstacles []string
	for _, o := range e.out.Offerings {
		if o.Obstacle != "" {
			obstacles = append(obstacles, fmt.Sprintf("%s of pool %s: %s", o.Offering, o.Pool, o.Obstacle))
		}
	}
	if len(obstacles) > 0 {
		e.say("Offerings: %s.", strings.Join(obstacles, "; "))
	}
}

func (e *explainer) offering(p *state.Pool, o *muster.Offering, live, launching int) {
	s := api.OfferingSight{Pool: string(p.Name), Offering: string(o.Name), Zone: o.Zone, Market: string(o.Market), Price: float64(o.Price) / 1e6}
	obstacle, unsure := fit.OfferingFits(e.shape, p, o)
	s.Fits = obstacle.Kind == fit.None
	switch {
	case obstacle.Kind == fit.Filtered:
		s.Obstacle = "does not meet " + obstacle.What
	case obstacle.Kind == fit.Short:
		s.Obstacle = "is too small: short of " + obstacle.What
	case !o.Available:
		s.Obstacle = "is not available"
	case e.blocked(o) != "":
		s.Obstacle = e.blocked(o)
	case live >= p.Max:
		s.Obstacle = fmt.Sprintf("the pool is at its maximum of %s", muster.Counted(p.Max, "node"))
	case p.MaxLaunching > 0 && launching >= p.MaxLaunching:
		s.Obstacle = fmt.Sprintf("the pool launches as many nodes at once as it may (%d)", p.MaxLaunching)
	case len(unsure) > 0:
		s.Obstacle = "" // its agent may show that it does not; the fleet tries one
	}
	if s.Fits && s.Obstacle == "" && (e.out.Price == nil || s.Price < *e.out.Price) {
		e.out.Price = &s.Price
	}
	e.out.Offerings = append(e.out.Offerings, s)
}

// blocked says what the cloud answered when it was last asked for the offering, or "".
func (e *explainer) blocked(o *muster.Offering) string {
	for i := range e.blocks {
		if b := &e.blocks[i]; b.Covers(o) && b.Until > e.now {
			return fmt.Sprintf("the cloud said no (%s); it is not asked for another %s", b.Why, e.in(b.Until))
		}
	}
	return ""
}

// coming tells which nodes on their way would hold members.
func (e *explainer) coming() {
	took := bootTimes(e.snap)
	late := map[muster.NodeID]time.Duration{} // after what time such nodes serve, of those that take longer
	e.snap.LiveNodes(func(n *state.Node) bool {
		if n.Stage != muster.NodeLaunching && n.Stage != muster.NodeBooting && n.Stage != muster.NodeAdopted {
			return true
		}
		p := e.snap.Pool(n.Pool)
		if p == nil || n.Intent != muster.NodeRun {
			return true
		}
		if o, _ := fit.OfferingFits(e.shape, p, &n.Offering); o.Kind != fit.None {
			return true
		}
		c := api.NodeComing{
			Node: string(n.ID), Pool: string(n.Pool), Offering: string(n.Offering.Name), Stage: string(n.Stage),
			Since: n.Launched.Std(), Price: float64(n.Offering.Price) / 1e6, Reason: n.StageReason, Trouble: n.BootError,
		}
		if h := n.History; c.Reason == "" && len(h) > 0 {
			c.Reason = h[0].Reason // of its launch
		}
		if usual, ok := took[n.Offering.Provider][n.Offering.Name]; ok {
			if due := n.Launched.Add(usual); due > e.now {
				c.Expected = present.Time(due)
			} else {
				late[n.ID] = usual
			}
		}
		e.out.Coming = append(e.out.Coming, c)
		return true
	})
	const most = 5
	for i, c := range e.out.Coming {
		if i == most {
			e.say("And %s more.", muster.Counted(len(e.out.Coming)-most, "node"))
			break
		}
		text := fmt.Sprintf("Node %s (%s, %g an hour) has been %s for %s", c.Node, c.Offering, c.Price, c.Stage, shortly(e.now.Sub(muster.At(c.Since))))
		if c.Expected != nil {
			text += ", and may serve in " + e.in(muster.At(*c.Expected))
		}
		if usual, ok := late[muster.NodeID(c.Node)]; ok {
			text += fmt.Sprintf(", longer than the %s that such nodes take", shortly(usual))
		}
		e.say("%s%s.", text, present.Because(c.Trouble))
	}
}

// bootTimes is the median time from launch to service of each offering's nodes, as far as they are remembered.
func bootTimes(snap *state.Snapshot) map[muster.ProviderName]map[muster.OfferingName]time.Duration {
	all := map[muster.ProviderName]map[muster.OfferingName][]time.Duration{}
	snap.Nodes("", func(n *state.Node) bool {
		if n.Joined != 0 {
			of := all[n.Offering.Provider]
			if of == nil {
				of = map[muster.OfferingName][]time.Duration{}
				all[n.Offering.Provider] = of
			}
			of[n.Offering.Name] = append(of[n.Offering.Name], n.Joined.Sub(n.Launched))
		}
		return true
	})
	out := map[muster.ProviderName]map[muster.OfferingName]time.Duration{}
	for provider, of := range all {
		out[provider] = map[muster.OfferingName]time.Duration{}
		for name, times := range of {
			slices.Sort(times)
			out[provider][name] = times[len(times)/2]
		}
	}
	return out
}

// fleet tells what the fleet decided last, and what the cloud answered.
func (e *explainer) fleet() {
	for i := range e.blocks {
		b := &e.blocks[i]
		concerns := false
		e.snap.Offerings(func(o *muster.Offering) bool {
			concerns = b.Covers(o) && e.fitsSome(o)
			return !concerns
		})
		if concerns {
			e.out.Blocks = append(e.out.Blocks, blockOf(b, e.now))
		}
	}
	if e.decisions == nil {
		return
	}
	for i := range e.decisions.Waits {
		if w := &e.decisions.Waits[i]; w.Shape == e.job.Run.Shape && w.Priority == e.job.Priority() {
			e.out.Fleet = append(e.out.Fleet, waitOf(w))
			e.say("The fleet launches nothing more for %s like it: %s.", muster.Counted(w.Members, "member"), w.Reason)
		}
	}
}

// fitsSome reports whether a member fits the offering in some pool.
func (e *explainer) fitsSome(o *muster.Offering) (fits bool) {
	e.snap.Pools(func(p *state.Pool) bool {
		obstacle, _ := fit.OfferingFits(e.shape, p, o)
		fits = obstacle.Kind == fit.None
		return !fits
	})
	return fits
}

// expect tells when a member may start, and what it costs.
// paced tells when room may come free by itself, if that is before any node on its way.
func (e *explainer) paced() {
	if e.out.Considered == nil || e.out.Considered.Fitting > 0 || e.out.Ahead == nil {
		return
	}
	est := expect.Start(e.snap, e.shape, e.out.Ahead.Members, e.now)
	if est.Start != 0 && est.Start <= e.now {
		e.say("The running jobs have reached their usual duration: a member may start at any time.")
		return
	}
	if est.Start == 0 || e.out.Expected != nil && e.out.Expected.Before(est.Start.Std()) {
		return
	}
	e.out.Expected, e.out.Price = present.Time(est.Start), nil
}

func (e *explainer) expect() {
	for i := range e.out.Coming {
		if c := &e.out.Coming[i]; c.Expected != nil && (e.out.Expected == nil || c.Expected.Before(*e.out.Expected)) {
			e.out.Expected, e.out.Price = c.Expected, &c.Price
		}
	}
	e.paced()
	switch {
	case e.out.Expected != nil && e.out.Price == nil:
		e.say("A member may start in about %s, as long as the jobs that hold the room take what they took before.", e.in(muster.At(*e.out.Expected)))
	case e.out.Expected != nil:
		e.say("A member may start in %s, on a node of %g an hour, if what is served before it leaves room.", e.in(muster.At(*e.out.Expected)), *e.out.Price)
	case e.out.Price != nil:
		e.say("The cheapest offering that can be had for it costs %g an hour.", *e.out.Price)
	}
}
