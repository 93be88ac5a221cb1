package state

import (
	"fmt"
	"testing"
	"time"

	"github.com/musterhq/muster"
)

// A node costs nothing while its machine is switched off, in whichever months, and its job's part stays what
// it was.
func TestCostOfAStoppedNode(t *testing.T) {
	l := newLog(t)
	l.submit("a", spec(1, half))
	at := func(month time.Month, day int) { l.now = int64(date(2026, month, day, 0)) - 1000 }
	at(1, 29)
	l.priced("n1", 1_000_000)
	l.place("ua", 1, 0, 1, "n1")
	l.conflicts(&NodeStopped{ID: "n1"})
	at(1, 30)
	l.report("n1", succeeded("ua-0-1"))
	at(1, 31)
	l.must(&NodeStopped{ID: "n1", Reason: "idle"})
	const hour = muster.Time(time.Hour / time.Microsecond)
	// The report came a moment after midnight, as each fact takes one.
	round := func(s Spend) Spend { return Spend{(s.Cost + 5e5) / 1e6, (s.Time + hour/2) / hour} }
	expect := func(when string, now muster.Time, want map[string]Spend) {
		t.Helper()
		check(t, l.s.Latest())
		got := costs(l.s.Latest(), now)
		for k, v := range got {
			got[k] = round(v)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	want := map[string]Spend{"2026-01 p": {48, 48}, "2026-01 p idle": {36, 36}, "2026-01 p default/a": {12, 12}, "2026-02 p": {}, "2026-02 p idle": {}}
	expect("while it is off", date(2026, 2, 20, 0), want)
	if got := l.s.Latest().Spent("p", date(2026, 2, 20, 0)); got != 0 {
		t.Errorf("spent in February: %d", got)
	}
	at(2, 3)
	l.must(&NodeStarting{ID: "n1"})
	l.must(&NodeStarted{ID: "n1"})
	l.must(&NodeJoined{ID: "n1"})
	at(2, 4)
	l.must(&NodeStopped{ID: "n1", Reason: "idle"})
	want["2026-02 p"], want["2026-02 p idle"] = Spend{24, 24}, Spend{24, 24}
	expect("off again", date(2026, 2, 20, 0), want)
	if got := l.s.Latest().Spent("p", date(2026, 2, 20, 0)); (got+5e5)/1e6 != 24 {
		t.Errorf("spent in February: %d", got)
	}
	at(3, 2)
	l.must(&NodeTerminating{ID: "n1", Reason: "stopped for long"})
	at(3, 3)
	l.must(&NodeGone{ID: "n1"})
	want["2026-03 p"], want["2026-03 p idle"] = Spend{24, 24}, Spend{24, 24}
	expect("when it is gone", date(2026, 4, 1, 0), want)
}

// A stopped node has no agent that could be believed, keeps when it joined first, and gets nothing before it
// has come back.
func TestStoppedNodeComesBack(t *testing.T) {
	l := newLog(t)
	l.priced("n1", 1)
	joined := l.s.Latest().Node("n1").Joined
	l.conflicts(&NodeStarting{ID: "n1"})
	l.conflicts(&NodeStarted{ID: "n1"})
	l.must(&NodeStopped{ID: "n1", Reason: "idle"})
	expect := func(stage muster.NodeStage, health muster.NodeHealth) {
		t.Helper()
		check(t, l.s.Latest())
		if n := l.s.Latest().Node("n1"); n.Stage != stage || n.Health != health || n.Joined != joined || n.Schedulable() != (stage == muster.NodeServing) || (n.IdleSince != 0) != n.Schedulable() {
			t.Errorf("%s, %s, joined %d, idle since %d; want %s, %s", n.Stage, n.Health, n.Joined, n.IdleSince, stage, health)
		}
	}
	expect(muster.NodeStopped, muster.NodeUnready)
	l.conflicts(&NodeDraining{ID: "n1"})
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeHold})
	l.conflicts(&NodeStarting{ID: "n1"})
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeRun})
	l.must(&NodeStarting{ID: "n1", Reason: "for a"})
	expect(muster.NodeStarting, muster.NodeUnready)
	// There was no capacity for it.
	l.must(&NodeStopped{ID: "n1", Reason: "no capacity"})
	expect(muster.NodeStopped, muster.NodeUnready)
	l.must(&NodeStarting{ID: "n1"})
	l.must(&NodeStarted{ID: "n1"})
	expect(muster.NodeBooting, muster.NodeUnready)
	l.must(&NodeJoined{ID: "n1", Capacity: muster.Resources{CPU: 4000, Memory: 4 * muster.GiB}})
	expect(muster.NodeServing, muster.NodeGood)
	// What is held or drained is not stopped.
	l.must(&NodeIntentSet{ID: "n1", Intent: muster.NodeDrain})
	l.conflicts(&NodeStopped{ID: "n1"})
}

// conflicts proposes a fact that must be refused because of what there is.
func (l *log) conflicts(f Fact) {
	l.t.Helper()
	if _, err := l.do(f); !muster.IsKind(err, muster.FaultConflict) {
		l.t.Errorf("%T: %v", f, err)
	}
}
