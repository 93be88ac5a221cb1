package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/musterhq/muster"
)

// Check walks the whole snapshot and says what contradicts itself: indexes,
// sums kept by apply, and what must never be true. It costs a walk over
// everything; tests and sim call it after each fact.
func (s *Snapshot) Check() error {
	c := &checker{snap: s, nodes: map[muster.NodeID]*nodeSum{}, jobs: map[muster.JobUID]*jobSum{}}
	c.allocs()
	c.eachNode()
	c.eachJob()
	c.retryIndexes()
	c.eachClaim()
	c.money()
	c.namespaces()
	c.reserved()
	c.hosts()
	return errors.Join(c.errs...)
}

type nodeSum struct {
	used   muster.Resources
	live   int
	system int
	grants []*Alloc // that name something
}

type jobSum struct {
	live, placed, running, wakes int
	// of an environment
	runners map[muster.RunnerState]int
}

type checker struct {
	snap  *Snapshot
	nodes map[muster.NodeID]*nodeSum
	jobs  map[muster.JobUID]*jobSum
	live  int
	errs  []error
}

func (c *checker) bad(format string, args ...any) {
	if len(c.errs) < 20 {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checker) job(uid muster.JobUID) *jobSum {
	if c.jobs[uid] == nil {
		c.jobs[uid] = &jobSum{}
	}
	return c.jobs[uid]
}

// allocs sums up the live ones, and finds members with two.
func (c *checker) allocs() {
	type member struct {
		uid     muster.JobUID
		version uint64
		index   int
	}
	of := map[member]muster.AllocID{}
	c.snap.Allocs("", func(a *Alloc) bool {
		if !a.Live() {
			return true
		}
		c.live++
		n := c.nodes[a.Node]
		if n == nil {
			n = &nodeSum{}
			c.nodes[a.Node] = n
		}
		n.used, n.live = n.used.Add(a.Run.Ask), n.live+1
		if a.Run.System() {
			n.system++
		}
		if a.Run.Names != nil {
			n.grants = append(n.grants, a)
		}
		j := c.job(a.UID)
		j.live++
		if row := c.snap.JobByUID(a.UID); row != nil && row.counts(a) {
			j.placed++
			if row.Env != nil {
				c.runner(j, a)
			}
			if a.Status == muster.AllocRunning {
				j.running++
			}
		}
		m := member{a.UID, a.Version, a.Index}
		if row := c.snap.JobByUID(a.UID); row != nil && row.Standing != nil {
			m.version = 0 // never two of one member, whatever their versions
		}
		if other, twice := of[m]; twice {
			c.bad("member %d of job %s has two live allocations, %s and %s", a.Index, a.Run.Key, other, a.ID)
		}
		of[m] = a.ID
		return true
	})
	if c.live != c.snap.LiveAllocCount() {
		c.bad("%d allocations are live, %d are in the index", c.live, c.snap.LiveAllocCount())
	}
}

func (c *checker) eachNode() {
	indexed, warm := 0, 0
	tallies := map[muster.PoolName]Tally{}
	c.snap.Nodes("", func(n *Node) bool {
		sum := c.nodes[n.ID]
		if sum == nil {
			sum = &nodeSum{}
		}
		if n.Used != sum.used || n.LiveAllocs != sum.live {
			c.bad("node %s says used %s by %d, the sum over its allocations is %s by %d", n.ID, n.Used, n.LiveAllocs, sum.used, sum.live)
		}
		if n.System != sum.system {
			c.bad("node %s says %d allocations are of system jobs, counted are %d", n.ID, n.System, sum.system)
		}
		taken, why := muster.Taken(""), ""
		for _, a := range sum.grants {
			if taken, why = taken.Take(a.Run.Names, a.Grant, n.Cores(), n.Devices()); why != "" {
				c.bad("node %s: allocation %s: %s", n.ID, a.ID, why)
			}
		}
		if n.Taken != taken {
			c.bad("node %s says %q is taken, its allocations have %q", n.ID, n.Taken, taken)
		}
		if dim := n.Used.Short(n.Capacity); dim != "" {
			c.bad("node %s is over its capacity of %s: %s of %s", n.ID, dim, n.Used, n.Capacity)
		}
		if n.Stage == muster.NodeGone && n.LiveAllocs > 0 {
			c.bad("node %s is gone with %d live allocations", n.ID, n.LiveAllocs)
		}
		c.warmth(n)
		warm += len(n.Warm)
		if n.Stage == muster.NodeServing {
			t := tallies[n.Pool]
			t.Pool = n.Pool
			t.Serving++
			if n.Health == muster.NodeFlaky {
				t.Sidelined++
			}
			tallies[n.Pool] = t
		}
		if flaky := n.Health == muster.NodeFlaky; flaky && n.SidelinedUntil == 0 && n.Stage.Live() {
			c.bad("node %s is flaky without an end", n.ID)
		}
		c.snap.NodeAllocs(n.ID, func(*Alloc) bool { indexed++; return true })
		return true
	})
	if indexed != c.live {
		c.bad("%d allocations are live, %d are in the index by node", c.live, indexed)
	}
	c.snap.t.tallies.Scan(func(t *Tally) bool {
		if *t != tallies[t.Pool] {
			c.bad("pool %q is counted as %+v and is %+v", t.Pool, *t, tallies[t.Pool])
		}
		delete(tallies, t.Pool)
		return true
	})
	if len(tallies) > 0 {
		c.bad("pools are not counted: %v", tallies)
	}
	if warm != c.snap.WarmCount() {
		c.bad("nodes remember %d keys, %d are in the index", warm, c.snap.WarmCount())
	}
}

// warmth of a node: bounded, no key twice, each in the index, none of a node that is gone.
func (c *checker) warmth(n *Node) {
	if len(n.Warm) > maxWarm || n.Stage == muster.NodeGone && len(n.Warm) > 0 {
		c.bad("node %s, %s, remembers %d keys", n.ID, n.Stage, len(n.Warm))
	}
	for i, k := range n.Warm {
		if _, there := c.snap.t.warm.Get(warmRow{k, n.ID}); !there || slices.Contains(n.Warm[:i], k) {
			c.bad("node %s: key %s is not once in the index", n.ID, k)
		}
	}
}

func (c *checker) eachJob() {
	unsettled := map[muster.JobUID]bool{}
	c.snap.Unsettled(func(j *Job) bool { unsettled[j.UID] = true; return true })
	c.snap.WakeAt(func(w Wake) bool { c.job(w.UID).wakes++; return true })
	c.snap.t.lives.Scan(func(l *life) bool {
		if row := c.snap.JobByUID(l.uid); row == nil || row.Key != l.key || row.Version != l.version {
			c.bad("version %d of job %s is known by name and has no row", l.version, l.key)
		}
		return true
	})
	if named, all := c.snap.t.lives.Len(), c.snap.t.jobsUID.Len(); named != all {
		c.bad("%d jobs are known by name, there are %d", named, all)
	}
	ended := int64(0)
	c.snap.EndedJobs(func(j *Job) bool { ended += j.SpecBytes(); return true })
	if ended != c.snap.EndedJobBytes() {
		c.bad("ended jobs take %d bytes, counted are %d", c.snap.EndedJobBytes(), ended)
	}
	c.snap.t.jobsUID.Scan(func(j *Job) bool {
		if newest := c.snap.Job(j.Key); newest == nil || newest.Version < j.Version {
			c.bad("version %d of job %s is not found by its name", j.Version, j.Key)
		}
		sum := c.job(j.UID)
		if all := j.Waiting() + j.Placed + j.Succeeded + j.Failed + j.Stopped; all != j.Count() {
			c.bad("job %s accounts for %d members of %d", j.Key, all, j.Count())
		}
		if j.LiveAllocs != sum.live || j.Running != sum.running || j.Placed != sum.placed {
			c.bad("job %s says live %d placed %d running %d, counted are %d %d %d", j.Key, j.LiveAllocs, j.Placed, j.Running, sum.live, sum.placed, sum.running)
		}
		if unsettled[j.UID] != (j.Stage == muster.JobLive && j.NextIndex < j.Count() && j.Parked == "") {
			c.bad("job %s: unsettled is %v", j.Key, unsettled[j.UID])
		}
		if j.Env != nil {
			c.environment(j, sum)
		}
		if j.Standing != nil {
			c.standingJob(j)
		}
		wakes := min(j.Retrying, 1)
		if j.ParkedUntil != 0 {
			wakes++
		}
		if sum.wakes != wakes {
			c.bad("job %s has %d deadlines for %d", j.Key, sum.wakes, wakes)
		}
		if j.Stage == muster.JobEnded && (j.LiveAllocs > 0 || j.Result == "" || j.Ended == 0) {
			c.bad("job %s has ended with outcome %q and %d live allocations", j.Key, j.Result, j.LiveAllocs)
		}
		return true
	})
}
