package state

import (
	"bytes"
	"flag"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// TestRandomFacts applies random facts, sensible and not, and holds the
// invariants after each; then replays the log and compares bytes, and restores an image and compares.
func TestRandomFacts(t *testing.T) { rapid.Check(t, randomFacts) }

// minutes is for how long TestRandomFactsForLong goes on.
var minutes = flag.Int("state.minutes", 0, "for how many minutes sequences of random facts are tried (TestRandomFactsForLong)")

// TestRandomFactsForLong is TestRandomFacts again and again: go test ./internal/state -run ForLong -state.minutes 10.
func TestRandomFactsForLong(t *testing.T) {
	if *minutes == 0 {
		t.Skip("needs -state.minutes")
	}
	sequences := 0
	for end := time.Now().Add(time.Duration(*minutes) * time.Minute); time.Now().Before(end) && !t.Failed(); {
		rapid.Check(t, func(t *rapid.T) {
			sequences++
			randomFacts(t)
		})
	}
	t.Logf("%d sequences of up to 130 facts", sequences)
}

func randomFacts(t *rapid.T) {
	l := &log{t: t, now: 1_000_000}
	l.s, _ = New(256)
	g := gen{t}
	n := rapid.IntRange(1, 120).Draw(t, "n")
	needed := FormatFirst
	if rapid.Bool().Draw(t, "raised") {
		needed = FormatNewest
		l.must(&FormatRaised{Format: needed})
	}
	for range n {
		l.sleep(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
		f := g.fact(l.s.Latest())
		needed = max(needed, needOf(f).format)
		_, _ = l.do(f)
		check(t, l.s.Latest())
	}
	if f := l.s.Image().format(); f > needed {
		t.Fatalf("facts of format %d made rows of format %d: a server that knows only the facts' format cannot have them", needed, f)
	}
	first := image(t, l.s)

	again, _ := New(256)
	for i, e := range l.entries {
		again.Apply(uint64(i+1), 1, e.at, e.proposals)
	}
	if !bytes.Equal(first, image(t, again)) {
		t.Fatal("the same log gave other bytes")
	}
	restored, _ := New(256)
	if err := restored.Restore(bytes.NewReader(first)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, image(t, restored)) {
		t.Fatal("a restored image writes other bytes")
	}
	check(t, restored.Latest())
	// What follows must be the same on both.
	l2 := &log{t: t, s: restored, entries: make([]entry, len(l.entries)), now: l.now}
	for range 10 {
		f := g.fact(l.s.Latest())
		supposing(t, l, f)
		_, _ = l2.do(f)
	}
	if !bytes.Equal(image(t, l.s), image(t, restored)) {
		t.Fatal("a restored state went another way")
	}
}

// supposing applies a fact that was supposed before: the same came of it, and nothing of the supposition.
func supposing(t *rapid.T, l *log, f Fact) {
	before := l.s.Latest()
	bytesOf := func(s *Snapshot) []byte {
		var b bytes.Buffer
		if _, err := (&Image{s, l.s.codec}).WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	was := bytesOf(before)
	supposed, _, refused := before.Suppose(f, muster.Time(l.now+1000))
	if !bytes.Equal(was, bytesOf(before)) {
		t.Fatalf("supposing %T changed the state", f)
	}
	_, err := l.do(f)
	switch {
	case (err == nil) != (refused == nil) || err != nil && err.Error() != refused.Error():
		t.Fatalf("%T: supposed %v, was %v", f, refused, err)
	case err == nil && !bytes.Equal(bytesOf(supposed), bytesOf(l.s.Latest())):
		t.Fatalf("%T: supposed another state than came of it", f)
	case err == nil:
		check(t, supposed)
	}
}

type gen struct{ t *rapid.T }

func (g gen) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, label) }

func (g gen) fact(s *Snapshot) Fact {
	node := muster.NodeID(fmt.Sprintf("n%d", g.pick("node", 4)))
	name := fmt.Sprintf("j%d", g.pick("job", 4))
	uid := muster.JobUID("u" + name)
	if j := s.Job(key(name)); j != nil {
		uid = j.UID
	}
	room := muster.Resources{CPU: 3000, Memory: muster.GiB}
	switch g.pick("fact", 38) {
	case 36, 37:
		return g.provider(s)
	case 28, 29, 30, 31, 32, 33, 34, 35:
		return g.standing(s, node)
	case 20, 21, 22, 23, 24, 25, 26, 27:
		return g.runner(s)
	case 0, 1:
		sp := spec(1+g.pick("count", 4), func(s *api.JobSpec) {
			s.Restart.Attempts = 1 + g.pick("attempts", 3)
			p := 40 + 10*g.pick("priority", 3)
			s.Priority = &p
			s.Restart.On = []string{"any"}
			s.Affinity = []string{"", "a", "b", "c"}[g.pick("affinity", 4)]
			s.Image = []string{"", "i", "k"}[g.pick("image", 3)]
		})
		return &JobSubmitted{Key: key(name), UID: muster.JobUID(fmt.Sprintf("u%s%d", name, s.Index())), Spec: sp, Replace: g.pick("replace", 2) == 0}
	case 2:
		if g.pick("retry", 3) > 0 {
			f := &JobRetried{Key: key(name), UID: uid, All: g.pick("all", 2) == 0, Idempotency: []string{"", "r"}[g.pick("key", 2)]}
			for i := range 4 * g.pick("list", 2) {
				if g.pick("listed", 2) == 0 {
					f.Members = append(f.Members, i)
				}
			}
			return f
		}
		return &JobStopped{Key: key(name)}
	case 3:
		if j := s.JobByUID(uid); j != nil {
			return &JobFailed{UID: uid, Reason: "r", Modified: j.Modified}
		}
		return &JobFailed{UID: uid}
	case 4:
		return &JobParked{UID: uid, Reason: []string{"", "why"}[g.pick("parked", 2)], Until: s.Meta().Time.Add(time.Second)}
	case 5:
		f := &JobsPurged{UIDs: []muster.JobUID{uid}}
		s.EndedJobs(func(j *Job) bool { f.UIDs = append(f.UIDs, j.UID); return g.pick("purge", 2) == 0 })
		return f
	case 6:
		return &NodeLaunching{ID: node, Token: muster.Token(node), Offering: muster.Offering{Capacity: room}}
	case 7:
		return &NodeLaunched{ID: node, Instance: "i"}
	case 8, 9:
		return &NodeJoined{ID: node, Capacity: room}
	case 10:
		h := []muster.NodeHealth{muster.NodeGood, muster.NodeLost, muster.NodeUnready, muster.NodeFlaky, muster.NodeBroken}
		return &NodeHealthChanged{ID: node, Health: h[g.pick("health", len(h))], Denied: g.pick("denied", 2) == 0}
	case 11:
		i := []muster.NodeIntent{muster.NodeRun, muster.NodeHold, muster.NodeDrain}
		return &NodeIntentSet{ID: node, Intent: i[g.pick("intent", 3)], Until: muster.Time(g.pick("until", 2))}
	case 12:
		switch g.pick("end", 23) {
		case 22:
			return &NodeStopped{ID: node, Reason: "r"}
		case 20:
			return &NodeStarting{ID: node}
		case 21:
			return &NodeStarted{ID: node}
		case 9, 10, 11:
			f := &RoomReserved{Node: node, UID: uid}
			if j := s.JobByUID(uid); j != nil {
				f.Version = j.Version
			}
			return f
		case 12:
			return &RoomReleased{Node: node, UID: uid}
		case 13:
			return &NodePlansRefused{ID: node, Count: 15, Reason: "r"}
		case 14, 15, 16:
			return &NodeFailed{ID: node, Reason: "r", Prove: g.pick("prove", 2) == 0}
		case 19:
			return &ConfigApplied{Content: []string{"", "{}", "{\"pools\":[]}"}[g.pick("config", 3)], How: ConfigReload, Over: []string{"", "o"}[g.pick("over", 2)]}
		case 18:
			return &NodeRekeyed{ID: node, HostKey: []string{"", "k"}[g.pick("hostkey", 2)]}
		case 17:
			return &NodeEvicted{ID: node, IfUntil: muster.Time(g.pick("ifuntil", 2))}
		case 5:
			return &NodeImagesSeen{ID: node, Images: []muster.AffinityKey{"image:docker.io/library/i:latest", "image:x"}[:g.pick("images", 3)]}
		case 0:
			if g.pick("kept", 2) == 0 {
				return &NodeKept{ID: node}
			}
			return &NodeDraining{ID: node, Unplaced: g.pick("unplaced", 2) == 0}
		case 1:
			return &NodeTerminating{ID: node, IfIdle: g.pick("idle", 2) == 0, Unexplained: g.pick("unexplained", 2) == 0, GiveUp: g.pick("giveup", 2) == 0}
		case 2:
			return &NodesPurged{IDs: []muster.NodeID{node}}
		case 3:
			return &PoolTripped{Reason: "r"}
		case 4:
			return &PoolResumed{Who: "w"}
		case 6:
			ns := []muster.Namespace{"default", muster.AllNamespaces}[g.pick("namespace", 2)]
			return &NamespaceLimited{NamespaceLimits{Name: ns, Jobs: g.pick("jobs", 5), Allocs: g.pick("allocs", 9), CPU: muster.MilliCPU(g.pick("cores", 9)) * 1000}}
		}
		return &NodeGone{ID: node}
	case 13, 14, 15, 16:
		return g.plan(s, node)
	}
	return g.report(s, node)
}

func (g gen) plan(s *Snapshot, node muster.NodeID) Fact {
	f := &PlanCommitted{Whole: g.pick("whole", 3) == 0}
	s.LiveAllocs(func(a *Alloc) bool {
		if g.pick("stop", 4) == 0 {
			reasons := []muster.StopReason{muster.StopPreempted, muster.StopUpdated, muster.StopSurplus, muster.StopMoved}
			f.Stops = append(f.Stops, Stop{Alloc: a.ID, Reason: reasons[g.pick("why", len(reasons))], For: a.UID})
		}
		return true
	})
	s.Jobs(muster.JobKey{}, func(j *Job) bool {
		for i := 0; i < j.Count(); i++ {
			if g.pick("take", 2) == 0 {
				continue
			}
			attempt := j.AttemptBase + 1
			if m := s.Member(j.UID, i); m != nil {
				attempt = m.Attempt + 1
			}
			f.Placements = append(f.Placements, Placement{UID: j.UID, Version: j.Version, Index: i, Attempt: attempt, Node: node})
		}
		return true
	})
	return f
}

func (g gen) report(s *Snapshot, node muster.NodeID) Fact {
	f := &AllocsReported{Node: node}
	s.Allocs("", func(a *Alloc) bool {
		switch g.pick("report", 6) {
		case 0:
			f.Allocs = append(f.Allocs, AllocUpdate{ID: a.ID, Status: muster.AllocRunning})
		case 1:
			f.Allocs = append(f.Allocs, succeeded(a.ID))
		case 2:
			f.Allocs = append(f.Allocs, failed(a.ID, muster.FailureUser, muster.ReasonExit, 1))
		case 3:
			f.Allocs = append(f.Allocs, failed(a.ID, muster.FailureNode, muster.ReasonNodeFault, 0))
		case 4:
			f.Allocs = append(f.Allocs, AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped, CPU: muster.Time(g.pick("used", 3)), PeakMemory: muster.Bytes(g.pick("peak", 3))})
		}
		return true
	})
	return f
}

// runner is a fact about environments, runners or claims.
func (g gen) runner(s *Snapshot) Fact {
	name := fmt.Sprintf("e%d", g.pick("environment", 2))
	k := muster.EnvironmentKey("default", name)
	uid := muster.JobUID("none")
	if j := s.Job(k); j != nil {
		uid = j.UID
	}
	var runners []muster.AllocID
	s.Allocs("", func(a *Alloc) bool {
		if a.Runner != "" && g.pick("this one", 2) == 0 {
			runners = append(runners, a.ID)
		}
		return true
	})
	var claims []*Claim
	s.Claims("", func(c *Claim) bool {
		if g.pick("this claim", 2) == 0 {
			claims = append(claims, c)
		}
		return true
	})
	switch g.pick("about runners", 12) {
	case 0, 1:
		return &EnvironmentSet{Key: k, UID: muster.JobUID(fmt.Sprintf("u%s%d", name, s.Index())), Spec: environment(name, func(e *api.EnvironmentSpec) {
			e.Image, e.Warm.Max = []string{"", "a", "b"}[g.pick("image", 3)], 1+g.pick("max", 3)
		})}
	case 2:
		return &EnvironmentDeleted{Key: k, Claimed: g.pick("claimed too", 2) == 0}
	case 3, 4:
		count := g.pick("count", 4)
		if j := s.JobByUID(uid); j != nil {
			count += j.NextIndex - g.pick("less", 2)
		}
		seen := &WarmDemand{Peaks: []Peak{{60_000_000, g.pick("peak", 3)}}}
		if g.pick("seen", 3) == 0 {
			return &DemandSeen{[]EnvironmentDemand{{uid, seen}}}
		}
		f := &RunnersWanted{UID: uid, Count: count, Priority: g.pick("priority", 2), Stock: count, Floor: 1, Why: "w", Drop: g.pick("drop", 3) == 0}
		if g.pick("with demand", 2) == 0 {
			f.Demand = seen
		}
		return f
	case 5:
		return &RunnersStopped{UID: uid, Runners: runners, Why: "surplus", Unready: g.pick("unready", 2) == 0}
	case 6:
		return &RunnersPurged{Runners: runners}
	case 7, 8:
		f := &RunnerClaimed{Claim: muster.ClaimID(fmt.Sprintf("c%d", s.Index()/2)), UID: uid, TTL: muster.Time(g.pick("ttl", 2)), Idle: muster.Time(g.pick("idle", 2)), Idempotency: []string{"", "k"}[g.pick("key", 2)]}
		if len(runners) > 0 {
			f.Runner = runners[0]
		}
		return f
	case 9:
		f := &ClaimsTouched{}
		for _, c := range claims {
			f.Claims = append(f.Claims, Touch{c.ID, s.Meta().Time})
		}
		return f
	case 10:
		f := &ClaimsExpired{}
		for _, c := range claims {
			f.Claims = append(f.Claims, Expiry{c.ID, "idle", c.Modified - uint64(g.pick("older", 2))})
		}
		return f
	}
	id := muster.ClaimID("none")
	if len(claims) > 0 {
		id = claims[0].ID
	}
	if g.pick("extend", 2) == 0 {
		return &ClaimExtended{Claim: id, TTL: muster.Time(g.pick("new ttl", 3)) - 1, Idle: muster.Time(g.pick("new idle", 3)) - 1}
	}
	return &ClaimReleased{Claim: id}
}

// provider is a fact about what is known of providers.
func (g gen) provider(s *Snapshot) Fact {
	host := []string{"a", "b"}[g.pick("host", 2)]
	of := muster.InstanceID("i" + host)
	switch g.pick("about hosts", 8) {
	case 0, 1:
		return &HostTaken{"p", host, HostUse{Instance: of, Token: muster.Token(fmt.Sprintf("t%d", g.pick("token", 3))), Taken: s.Meta().Time}}
	case 2:
		return &HostTagged{Provider: "p", Name: host, Instance: of, Node: "n1"}
	case 3:
		return &HostReleased{"p", host, of, g.pick("owed", 2) == 0}
	case 4:
		return &HostsFound{"p", []HostFound{{Name: host, Address: "x"}}[:g.pick("found", 2)]}
	}
	if g.pick("about providers", 3) == 0 {
		return &InstanceSheltered{Token: muster.Token(fmt.Sprintf("t%d", g.pick("token", 3))), Until: s.Meta().Time.Add(time.Duration(g.pick("for", 3)) * time.Second)}
	}
	b := Block{Call: []string{CallCreate, CallList}[g.pick("call", 2)], Scope: muster.Scope{Provider: "p", Zone: []string{"", "a", "b"}[g.pick("zone", 3)]}, Kind: muster.FaultCapacity}
	if g.pick("ended", 3) == 0 {
		return &BlocksChanged{Ended: []Block{b}}
	}
	b.Times, b.Until = 1+g.pick("times", 3), s.Meta().Time.Add(time.Duration(g.pick("for", 5))*time.Second)
	b.Forget = b.Until.Add(time.Second)
	return &BlocksChanged{Set: []Block{b}}
}

// standing is a fact about service and system jobs.
func (g gen) standing(s *Snapshot, node muster.NodeID) Fact {
	name := fmt.Sprintf("s%d", g.pick("service", 2))
	kind := []muster.JobType{muster.JobService, muster.JobSystem}[g.pick("type", 2)]
	j := s.Job(key(name))
	if j == nil || g.pick("submit", 3) == 0 {
		sp := spec(1, func(s *api.JobSpec) {
			s.Type, s.Restart = string(kind), api.RestartSpec{}
			if kind == muster.JobService {
				s.Count = 1 + g.pick("count", 4)
			}
			s.Image = []string{"", "i", "k"}[g.pick("image", 3)]
			s.Defaults()
		})
		return &JobSubmitted{Key: key(name), UID: muster.JobUID(fmt.Sprintf("u%s%d", name, s.Index())), Spec: sp, Replace: g.pick("replace", 4) == 0}
	}
	switch g.pick("about services", 8) {
	case 0:
		return &RolloutMoved{UID: j.UID, Version: j.Version, Stage: []muster.RolloutStage{muster.RolloutDone, muster.RolloutFailed}[g.pick("stage", 2)], Reason: "r"}
	case 1, 2:
		f := &SystemSized{UID: j.UID, Version: j.Version, Count: j.NextIndex + g.pick("more", 3)}
		s.Members(j.UID, 0, func(m *Member) bool {
			if g.pick("drop", 2) == 0 {
				f.Drop = append(f.Drop, m.Index)
			}
			return true
		})
		return f
	case 3:
		f := &AllocsPurged{}
		s.Allocs("", func(a *Alloc) bool { f.Allocs = append(f.Allocs, a.ID); return true })
		return f
	case 4:
		return g.report(s, node)
	}
	return g.plan(s, node)
}
