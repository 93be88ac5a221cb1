package state

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

func (l *log) pool(names ...muster.PoolName) {
	l.t.Helper()
	f := &PoolsSet{}
	for _, n := range names {
		f.Pools = append(f.Pools, Pool{Name: n, Max: 9})
	}
	l.must(f)
}

func TestBreakerRemembers(t *testing.T) {
	l := newLog(t)
	l.pool("p")
	end := func(id string, unexplained bool) error {
		l.serve(id, 1)
		_, err := l.do(&NodeTerminating{ID: muster.NodeID(id), Unexplained: unexplained})
		return err
	}
	for i, unexplained := range []bool{true, false, true} {
		if err := end(fmt.Sprintf("n%d", i), unexplained); err != nil {
			t.Fatal(err)
		}
	}
	now := muster.Time(l.now)
	if n := l.s.Latest().Breaker("p").Unexplained(now); n != 2 {
		t.Errorf("%d, want 2: what is explained does not count", n)
	}
	if n := l.s.Latest().Breaker("p").Unexplained(now.Add(BreakerWindow)); n != 0 {
		t.Errorf("%d are counted after the window", n)
	}
	if n := l.s.Latest().Breaker("q").Unexplained(now); n != 0 || l.s.Latest().Breaker("q").IsTripped() {
		t.Error("another pool's breaker knows of it")
	}
	l.must(&PoolTripped{Pool: "p", Reason: "too many"})
	l.must(&PoolTripped{Pool: "p", Reason: "again"}) // changes nothing
	if err := end("n3", true); !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("destroyed although it has tripped: %v", err)
	}
	if err := end("n4", false); err != nil {
		t.Errorf("what is explained goes on: %v", err)
	}
	// A restart, and a configuration that does not have the pool for a while, change nothing of it.
	l.pool("q")
	again, _ := New(16)
	if err := again.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	if b := again.Latest().Breaker("p"); !b.IsTripped() || b.Reason != "too many" || len(b.Destroyed) != 2 {
		t.Errorf("%+v", b)
	}
	l.must(&PoolResumed{Pool: "p", Who: "ada"})
	if b := l.s.Latest().Breaker("p"); b.IsTripped() || b.Who != "ada" || b.Unexplained(muster.Time(l.now)) != 0 {
		t.Errorf("%+v", b)
	}
	if _, err := l.do(&PoolResumed{Pool: "nope"}); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("%v", err)
	}
	changes, _, err := l.s.Feed().After(l.s.Feed().Oldest(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	var verbs []Verb
	for i := range changes {
		if changes[i].Breaker != nil {
			verbs = append(verbs, changes[i].Verb)
		}
	}
	if fmt.Sprint(verbs) != "[pool.tripped pool.resumed]" {
		t.Errorf("%v", verbs)
	}
	l.pool("q")
	if l.s.Latest().Breaker("p") != nil {
		t.Error("the closed breaker of a pool that is gone is kept")
	}
}

func TestHeldNodeRefusesDrainAndDestroy(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 1)
	until := muster.Time(l.now).Add(time.Hour)
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Reason: "look", Who: "ada", Until: until})
	for _, f := range []Fact{&NodeDraining{ID: "n1", Who: "ada"}, &NodeTerminating{ID: "n1", Who: "ada"}, &NodeTerminating{ID: "n1", Unexplained: true}} {
		if _, err := l.do(f); !muster.IsKind(err, muster.FaultConflict) {
			t.Errorf("%T of a held node: %v", f, err)
		}
	}
	if n := l.s.Latest().Breaker(""); n != nil {
		t.Errorf("what was refused is counted: %+v", n)
	}
	// It is held anew before the end of the first hold is noticed.
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold, Reason: "look", Who: "ada", Until: until.Add(time.Hour)})
	if _, err := l.do(&NodeIntentSet{ID: "n1", Intent: muster.NodeRun, IfUntil: until}); !muster.IsKind(err, muster.FaultConflict) {
		t.Errorf("the end of an earlier hold: %v", err)
	}
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeRun, IfUntil: until.Add(time.Hour)})
	if n := l.s.Latest().Node("n1"); n.Intent != muster.NodeRun || n.IntentUntil != 0 || n.IntentWho != "" {
		t.Errorf("%+v", n)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	l := newLog(t)
	l.serve("n1", 1)
	before := l.s.Latest().Node("n1")
	for i := range 100 {
		l.must(&NodeIntentSet{ID: "n1", Intent: []muster.NodeIntent{muster.NodeHold, muster.NodeRun}[i%2], Reason: fmt.Sprint(i)})
	}
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready, Reason: "a"})
	for i := range 20 {
		l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready, Reason: fmt.Sprint("again ", i)})
	}
	n := l.s.Latest().Node("n1")
	if len(n.History) != historyLength || n.HistoryLost != 105-historyLength {
		t.Errorf("%d entries, %d lost", len(n.History), n.HistoryLost)
	}
	last := n.History[len(n.History)-1]
	if n.History[0].Verb != VerbNodeLaunching || last.Verb != VerbNodeHealthReason || last.Reason != "again 19" {
		t.Errorf("first %+v, last %+v", n.History[0], last)
	}
	if len(before.History) != 3 || before.History[2].Verb != VerbNodeServing {
		t.Errorf("an earlier row has changed: %+v", before.History)
	}
	// What keeps a node from coming into service stays to be read.
	l.must(&NodeLaunching{ID: "n2", Token: "t2"})
	l.must(&NodeLaunched{ID: "n2", Instance: "i2"})
	l.must(&NodeHealthChanged{ID: "n2", Health: muster.NodeUnready, Reason: "permission denied"})
	l.must(&NodeTerminating{ID: "n2", Reason: "boot time-out"})
	l.must(&NodeGone{ID: "n2"})
	if n := l.s.Latest().Node("n2"); !strings.Contains(n.BootError, "permission denied") {
		t.Errorf("%+v", n)
	}
}
