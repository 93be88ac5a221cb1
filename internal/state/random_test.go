package state

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// TestRandomFacts applies random facts, sensible and not, and holds the
// invariants after each; then replays the log and compares bytes, and restores an image and compares.
func TestRandomFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &log{t: t, now: 1_000_000}
		l.s, _ = New(256)
		g := gen{t}
		n := rapid.IntRange(1, 120).Draw(t, "n")
		for range n {
			l.sleep(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			_, _ = l.do(g.fact(l.s.Latest()))
			check(t, l.s.Latest())
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
			_, _ = l.do(f)
			_, _ = l2.do(f)
		}
		if !bytes.Equal(image(t, l.s), image(t, restored)) {
			t.Fatal("a restored state went another way")
		}
	})
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
	switch g.pick("fact", 20) {
	case 0, 1:
		sp := spec(1+g.pick("count", 4), func(s *api.JobSpec) {
			s.Restart.Attempts = 1 + g.pick("attempts", 3)
			s.Restart.On = []string{"any"}
		})
		return &JobSubmitted{Key: key(name), UID: muster.JobUID(fmt.Sprintf("u%s%d", name, s.Index())), Spec: sp, Replace: g.pick("replace", 2) == 0}
	case 2:
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
		switch g.pick("end", 6) {
		case 0:
			return &NodeDraining{ID: node}
		case 1:
			return &NodeTerminating{ID: node, IfIdle: g.pick("idle", 2) == 0, Unexplained: g.pick("unexplained", 2) == 0}
		case 2:
			return &NodesPurged{IDs: []muster.NodeID{node}}
		case 3:
			return &PoolTripped{Reason: "r"}
		case 4:
			return &PoolResumed{Who: "w"}
		}
		return &NodeGone{ID: node}
	case 13, 14, 15, 16:
		return g.plan(s, node)
	}
	return g.report(s, node)
}

func (g gen) plan(s *Snapshot, node muster.NodeID) Fact {
	f := &PlanCommitted{}
	s.Jobs(muster.JobKey{}, func(j *Job) bool {
		for i := 0; i < j.Count(); i++ {
			if g.pick("take", 2) == 0 {
				continue
			}
			attempt := j.AttemptBase + 1
			if m := s.Member(j.UID, i); m != nil {
				attempt = m.Attempt + 1
			}
			f.Placements = append(f.Placements, Placement{j.UID, j.Version, i, attempt, node})
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
			f.Allocs = append(f.Allocs, AllocUpdate{ID: a.ID, Status: muster.AllocEnded, Outcome: muster.OutcomeStopped})
		}
		return true
	})
	return f
}
