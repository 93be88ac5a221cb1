package link

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// set brings an environment with n runners on a node; its uid is "ue".
func (r *rig) set(n int, node muster.NodeID, edit func(*api.EnvironmentSpec)) []muster.AllocID {
	r.t.Helper()
	s := &api.EnvironmentSpec{Name: "e", Template: api.Template{Command: []string{"hang"}, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 20}}}
	edit(s)
	s.Defaults()
	r.must(&state.EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue", Spec: s})
	r.must(&state.RunnersWanted{UID: "ue", Count: n, Stock: n, Floor: n, Priority: 50, Why: "a test"})
	return r.place("e", node)
}

func runnerIs(id muster.AllocID, is muster.RunnerState) func(*state.Snapshot) bool {
	return func(s *state.Snapshot) bool { a := s.Alloc(id); return a != nil && a.Runner == is }
}

// A runner is warm only when its readiness command has passed, and until then says why it is not.
func TestARunnerIsWarmWhenItIsReady(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		ids := r.set(2, "n1", func(s *api.EnvironmentSpec) { s.Ready = &api.ReadySpec{Command: []string{"true"}} })
		r.until("both run", time.Minute, func(s *state.Snapshot) bool {
			return s.Alloc(ids[0]).Status == muster.AllocRunning && s.Alloc(ids[1]).Status == muster.AllocRunning
		})
		if c := r.log.Latest().JobByUID("ue").Runners(); c.Warm != 0 || c.Starting != 2 {
			t.Fatalf("none is ready, and runners are %+v", c)
		}
		n.Prove(ids[0], "not ready yet: its readiness command exited with code 1")
		r.until("it says why", time.Minute, func(s *state.Snapshot) bool { return s.Alloc(ids[0]).Detail != "" })
		n.Prove(ids[0], "")
		r.until("warm", time.Minute, runnerIs(ids[0], muster.RunnerWarm))
		if a := r.log.Latest().Alloc(ids[0]); a.Detail != "" {
			t.Errorf("warm, and says %q", a.Detail)
		}
		// What became ready while nobody was there is told with the first report.
		r.stop()
		n.Prove(ids[1], "")
		r.restart()
		r.until("warm as well", time.Minute, runnerIs(ids[1], muster.RunnerWarm))
		if err := r.log.Latest().Check(); err != nil {
			t.Error(err)
		}
	})
}

// A warm runner of such an environment is to stand still, whoever leads; a claimed one goes on.
func TestAWarmRunnerStandsStill(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 8)
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		ids := r.set(2, "n1", func(s *api.EnvironmentSpec) { s.Frozen = true })
		r.until("warm", time.Minute, func(s *state.Snapshot) bool { return s.JobByUID("ue").Env.Warm == 2 })
		if !n.Stands(ids[0]) || !n.Stands(ids[1]) {
			t.Fatal("a warm runner is not to stand still")
		}
		r.must(&state.RunnerClaimed{Claim: "c", UID: "ue", Runner: ids[0]})
		time.Sleep(time.Second)
		if n.Stands(ids[0]) || !n.Stands(ids[1]) {
			t.Fatalf("claimed, and stands: %v; warm, and stands: %v", n.Stands(ids[0]), n.Stands(ids[1]))
		}
		r.restart()
		time.Sleep(time.Minute)
		if n.Stands(ids[0]) || !n.Stands(ids[1]) {
			t.Fatalf("after another leader: claimed, and stands: %v; warm, and stands: %v", n.Stands(ids[0]), n.Stands(ids[1]))
		}
	})
}
