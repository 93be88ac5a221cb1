package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/decide/expect"
	"github.com/musterhq/muster/internal/decide/fit"
	"github.com/musterhq/muster/internal/present"
	"github.com/musterhq/muster/internal/state"
)

// offerings lists what could be launched for a member, what keeps each offering from being
// launched, and the cheapest price. It repeats the conditions of the fleet in the order of their
// duration; the fleet itself stays the only part that decides.
func (e *jobRecord) offerings() {
	// A pool limits the nodes that exist and the nodes that launch at once.
	live, launching := map[muster.PoolName]int{}, map[muster.PoolName]int{}
	e.snap.LiveNodes(func(n *state.Node) bool {
		if n.Stage == muster.NodeStopped {
			return true // it counts for no limit
		}
		live[n.Pool]++
		if n.Stage == muster.NodeLaunching || n.Stage == muster.NodeStarting {
			launching[n.Pool]++
		}
		return true
	})
	// A job that names a pool uses no other.
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
		e.say("No pool is configured that it may use.")
	}
	// One sentence for all obstacles. The list in the data has one entry for each offering.
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

// offering lists one offering of a pool. If it has several obstacles, the one that lasts longest is
// named: an offering that never fits comes before a refusal of the provider or a limit of the pool.
func (e *jobRecord) offering(p *state.Pool, o *muster.Offering, live, launching int) {
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
		s.Obstacle = fmt.Sprintf("the pool launches its maximum of nodes at once (%d)", p.MaxLaunching)
	case len(unsure) > 0:
		s.Obstacle = "" // the offering does not declare all attributes; the fleet launches one to see
	}
	// Price is that of the cheapest offering that can be launched now, per hour. Any other price
	// would be one that nobody pays.
	if s.Fits && s.Obstacle == "" && (e.out.Price == nil || s.Price < *e.out.Price) {
		e.out.Price = &s.Price
	}
	e.out.Offerings = append(e.out.Offerings, s)
}

// blocked says what the provider answered to the last request for the offering, if it refused and
// the fleet does not ask again yet; else "". A block whose time has passed is no obstacle: the next
// launch asks again.
func (e *jobRecord) blocked(o *muster.Offering) string {
	for i := range e.blocks {
		if b := &e.blocks[i]; b.Covers(o) && b.Until > e.now {
			return fmt.Sprintf("the cloud refused (%s); it is not asked again for %s", b.Why, e.in(b.Until))
		}
	}
	return ""
}

// coming lists the nodes that are launching or booting and that would fit a member. The expected
// time of each is the median boot time of its offering. A node is not bound to the job that it was
// launched for: any job may take it.
func (e *jobRecord) coming() {
	took := bootTimes(e.snap)
	late := map[muster.NodeID]time.Duration{} // the median boot time, of nodes that have exceeded it
	e.snap.LiveNodes(func(n *state.Node) bool {
		if n.Stage != muster.NodeLaunching && n.Stage != muster.NodeBooting && n.Stage != muster.NodeAdopted && n.Stage != muster.NodeStarting {
			return true
		}
		// A node that is held or drained while it boots takes no work when it serves.
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
			c.Reason = h[0].Reason // why it was launched
		}
		// Without an earlier node of the offering there is no expectation. A node that has exceeded
		// it gets none either: any time would be invented.
		if usual, ok := took[n.Offering.Provider][n.Offering.Name]; ok {
			from := n.Launched
			if n.Joined != 0 {
				from = n.StageSince // it was switched off, and is coming back
			}
			if due := from.Add(usual); due > e.now {
				c.Expected = present.Time(due)
			} else {
				late[n.ID] = usual
			}
		}
		e.out.Coming = append(e.out.Coming, c)
		return true
	})
	// The sentences name only the first few nodes; Coming in the data has all of them.
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
		e.say("%s%s.", text, muster.Because(c.Trouble))
	}
}

// rated says which providers are called so seldom that creating nodes waits. Only nodes that the job
// may use count, and only before they exist: from then on, no rate delays them.
func (e *jobRecord) rated() {
	launching := map[muster.ProviderName]bool{}
	for _, c := range e.out.Coming {
		if c.Stage == string(muster.NodeLaunching) {
			if p := e.snap.Pool(muster.PoolName(c.Pool)); p != nil {
				launching[p.Provider] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(launching)) {
		for _, r := range e.rates(name) {
			if r.Waiting == 0 || r.Calls != "create" && r.Calls != "launch" {
				continue
			}
			what := "instances"
			if r.Calls == "launch" {
				what = "calls that create instances"
			}
			e.out.Rates = append(e.out.Rates, r)
			e.say("Provider %s takes %.3g %s a second: %s for that, the last for %s.", name, r.PerSecond, what, waitingText(r.Waiting), shortly(r.Last.Std()))
		}
	}
}

// waitingText is the verb with its subject.
func waitingText(n int) string {
	if n == 1 {
		return "1 waits"
	}
	return fmt.Sprintf("%d wait", n)
}

// bootTimes returns the median time from launch to service of each offering, over the nodes that
// the state still has. Nodes that are gone count until retention removes them. The median is robust
// against a few instances that boot very slowly.
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

// fleet says what the fleet decided last about members like the job's, and lists the refusals of
// providers that concern them.
func (e *jobRecord) fleet() {
	// A block concerns the job if it covers an offering that a member fits.
	for i := range e.blocks {
		b := &e.blocks[i]
		concerns := false
		e.snap.Offerings(func(o *muster.Offering) bool {
			concerns = b.Covers(o) && e.fitsSome(o)
			return !concerns
		})
		if concerns {
			e.out.Blocks = append(e.out.Blocks, present.Block(b, e.now))
		}
	}
	// The fleet decides for all members of one shape and priority together, whatever job they
	// belong to. So the number in the sentence may exceed the members of this job.
	if e.decisions == nil {
		return
	}
	for i := range e.decisions.Waits {
		if w := &e.decisions.Waits[i]; w.Shape == e.job.Run.Shape && w.Priority == e.job.Priority() {
			e.out.Fleet = append(e.out.Fleet, present.Wait(w))
			e.say("No more nodes are launched for %s like it: %s.", muster.Counted(w.Members, "member"), w.Reason)
		}
	}
}

// fitsSome reports whether a member fits the offering in some pool.
func (e *jobRecord) fitsSome(o *muster.Offering) (fits bool) {
	e.snap.Pools(func(p *state.Pool) bool {
		obstacle, _ := fit.OfferingFits(e.shape, p, o)
		fits = obstacle.Kind == fit.None
		return !fits
	})
	return fits
}

// paced estimates when a member starts on capacity that running jobs release, from the usual
// duration of jobs of their kind. The estimate replaces that of a coming node only if it is
// earlier. It does not apply while a member fits: then no job has to end first.
func (e *jobRecord) paced() {
	if e.out.Considered == nil || e.out.Considered.Fitting > 0 || e.out.Ahead == nil {
		return
	}
	// Members that are served before the job take released capacity first.
	est := expect.Start(e.snap, e.job.UID, e.shape, e.out.Ahead.Members, e.now)
	if est.Start != 0 && est.Start <= e.now {
		e.say("The running jobs have reached their usual duration: a member may start at any time.")
		return
	}
	if est.Start == 0 || e.out.Expected != nil && e.out.Expected.Before(est.Start.Std()) {
		return
	}
	// The member would start on a node that exists, so no new node adds to the cost.
	e.out.Expected, e.out.Price = present.Time(est.Start), nil
}

// expect says when a member may start, and what its node costs an hour: on the first node that
// comes, or when running jobs end.
func (e *jobRecord) expect() {
	for i := range e.out.Coming {
		if c := &e.out.Coming[i]; c.Expected != nil && (e.out.Expected == nil || c.Expected.Before(*e.out.Expected)) {
			e.out.Expected, e.out.Price = c.Expected, &c.Price
		}
	}
	e.paced()
	switch {
	case e.out.Expected != nil && e.out.Price == nil:
		e.say("A member may start in about %s, if the jobs that use the capacity run as long as before.", e.in(muster.At(*e.out.Expected)))
	case e.out.Expected != nil:
		e.say("A member may start in %s, on a node of %g an hour, if the work before it leaves capacity.", e.in(muster.At(*e.out.Expected)), *e.out.Price)
	case e.out.Price != nil:
		e.say("The cheapest available offering for it costs %g an hour.", *e.out.Price)
	}
}
