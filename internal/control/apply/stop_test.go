package apply

import (
	"context"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/decide/verify"
	"github.com/musterhq/muster/internal/state"
)

const stopCluster = `
node n1 cpu=2 memory=4GiB
node n2 cpu=1 memory=4GiB
job a count=3 priority=30
job b count=2 priority=60
place a 0 1 n1
`

func preempt(id muster.AllocID, by muster.JobUID) state.Stop {
	return state.Stop{Alloc: id, Reason: muster.StopPreempted, For: by, Why: "room for b"}
}

func TestStopsAreCommitted(t *testing.T) {
	inBubble(t, stopCluster, func(r *rig) {
		v, err := r.Submit(context.Background(), verify.Submission{Token: 1, Stops: []state.Stop{preempt("a-0-1", "b"), preempt("a-9-1", "b")}})
		if err != nil || len(v.Stops) != 1 || len(v.RefusedStops) != 1 {
			t.Fatalf("%+v %v", v, err)
		}
		if a := r.log.Latest().Alloc("a-0-1"); a.Desired != muster.AllocStop || a.StopReason != muster.StopPreempted {
			t.Errorf("%+v", a)
		}
		if s := r.Stats(); s.Stops != 1 || s.Partial != 1 || s.Refusals != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestStopForAnEndedEvaluationIsRefused(t *testing.T) {
	inBubble(t, stopCluster, func(r *rig) {
		r.del.over["b"] = true
		v, err := r.Submit(context.Background(), verify.Submission{Token: 1, Stops: []state.Stop{preempt("a-0-1", "b")}})
		if err != nil || len(v.Stops) != 0 || len(v.RefusedStops) != 1 {
			t.Fatalf("%+v %v", v, err)
		}
		if a := r.log.Latest().Alloc("a-0-1"); a.Desired != muster.AllocRun {
			t.Errorf("%+v", a)
		}
	})
}

func TestWholePlanOrNothing(t *testing.T) {
	inBubble(t, stopCluster, func(r *rig) {
		whole := func(text string) verify.Verdict {
			v, err := r.Submit(context.Background(), verify.Submission{Token: 1, Placements: plan(text), Stops: []state.Stop{preempt("a-0-1", "b")}, Whole: true})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if v := whole("b 0 n2; b 1 n1"); len(v.Placements) != 0 || len(v.Stops) != 0 || len(v.Refused) != 1 {
			t.Fatalf("%+v", v)
		}
		if n := r.log.Latest().LiveAllocCount(); n != 2 || r.log.Latest().Alloc("a-0-1").Desired != muster.AllocRun {
			t.Fatalf("%d live", n)
		}
		// True when it was verified, refused by the state: then all of it is refused, and nobody else's.
		between := true
		r.log.Before = func(_ context.Context, f state.Fact) error {
			if p, ok := f.(*state.PlanCommitted); ok && p.Whole && between {
				between = false
				r.log.Must(t, &state.NodeIntentSet{ID: "n2", Intent: muster.NodeHold})
			}
			return nil
		}
		if v := whole("b 0 n2"); len(v.Placements) != 0 || len(v.Stops) != 0 || len(v.Refused) != 1 {
			t.Fatalf("%+v", v)
		}
		if r.log.Latest().Alloc("a-0-1").Desired != muster.AllocRun {
			t.Error("its stop was committed")
		}
		r.log.Must(t, &state.NodeIntentSet{ID: "n2", Intent: muster.NodeRun})
		if v := whole("b 0 n2"); len(v.Placements) != 1 || len(v.Stops) != 1 {
			t.Fatalf("%+v", v)
		}
	})
}
