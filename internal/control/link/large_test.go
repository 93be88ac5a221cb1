package link

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// What one entry changes is handed to nodes whole, however much that is, also if no entry comes after it.
func TestEntryOfManyChanges(t *testing.T) {
	inBubble(t, func(r *rig) {
		const members = stepLimit + 200
		quiet := r.boot("n1", 8)
		r.boot("n2", 8)
		var away atomic.Bool
		start := r.config.StartAgent
		r.config.StartAgent = func(ctx context.Context, n *state.Node) error {
			if away.Load() {
				return errors.New("it stays away")
			}
			return start(ctx, n)
		}
		r.start()
		r.until("both serve", time.Minute, func(s *state.Snapshot) bool { return serving("n1")(s) && serving("n2")(s) })
		r.submit("j", spec("sleep 100h", count(members), func(s *api.JobSpec) { s.Resources.CPU = 0.001 }))
		plan := &state.PlanCommitted{}
		for i := range members {
			node := muster.NodeID("n1")
			if i == members-1 {
				node = "n2"
			}
			plan.Placements = append(plan.Placements, state.Placement{UID: "uj", Version: 1, Index: i, Attempt: 1, Node: node})
		}
		if res := r.must(plan).(*state.PlanResult); len(res.Refused) > 0 {
			t.Fatalf("%v", res.Refused[0])
		}
		last := muster.NewAllocID("uj", members-1, 1)
		r.until("all run", time.Hour, func(s *state.Snapshot) bool { return s.JobByUID("uj").Running == members })
		// From now on n1 says nothing, and what it is told is nobody's news.
		away.Store(true)
		quiet.Kill()
		r.until("n1 is out of contact", time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Health == muster.NodeLost })
		time.Sleep(time.Minute)
		r.must(&state.JobStopped{Key: muster.JobKey{Namespace: "default", Name: "j"}})
		time.Sleep(time.Second)
		if a := r.log.Latest().Alloc(last); a.Status != muster.AllocEnded {
			t.Errorf("a second later the last of them is %s", a.Status)
		}
	})
}

// What users can make long counts for the size of a message, whatever its form on the wire.
func TestSizeOfASpec(t *testing.T) {
	long := strings.Repeat("x", 1000)
	empty := sizeOf(&wire.AllocSpec{})
	for name, s := range map[string]*wire.AllocSpec{
		"command": {Template: api.Template{Command: []string{long}}}, "entrypoint": {Template: api.Template{Entrypoint: []string{long}}},
		"egress": {Template: api.Template{Egress: []string{long}}}, "env": {Template: api.Template{Env: map[string]string{"A": long}}},
		"ready": {Ready: &wire.Readiness{Command: []string{long}}}, "content": {Inputs: []wire.Input{{Content: []byte(long)}}},
		"url": {Inputs: []wire.Input{{URL: long}}}, "output": {Outputs: []wire.Output{{Path: long}}},
	} {
		if n := sizeOf(s); n < empty+len(long) {
			t.Errorf("%s: %d bytes, %d without it", name, n, empty)
		}
	}
}
