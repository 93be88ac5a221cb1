package link

import (
	"context"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/state"
)

// A server that was started again may be of another build, and so should its agents be then;
// but only those that obey it, and not those that it has just launched.
func TestAgentsAreRenewedByTheNextLeader(t *testing.T) {
	inBubble(t, func(r *rig) {
		asked := map[string]int{}
		start := r.config.StartAgent
		r.config.StartAgent = func(ctx context.Context, n *state.Node) error {
			r.mu.Lock()
			asked[string(n.ID)]++
			r.mu.Unlock()
			// The other build takes over.
			r.node(n.ID).Kill()
			return start(ctx, n)
		}
		check := func(node string, want int) {
			t.Helper()
			r.mu.Lock()
			defer r.mu.Unlock()
			if asked[node] != want {
				t.Errorf("%s: asked for an agent of this build %d times, want %d", node, asked[node], want)
			}
		}
		r.start()
		r.boot("n1", 4)
		r.until("n1 serves", time.Minute, serving("n1"))
		r.submit("j", spec("sleep 20s"))
		id := r.place("j", "n1")[0]
		r.until("it runs", time.Minute, allocIs(id, "running"))
		check("n1", 0)
		time.Sleep(time.Second)
		r.restart()
		r.boot("n2", 4)
		r.until("n2 serves", time.Minute, serving("n2"))
		r.until("the job has ended", time.Minute, jobEnded("j"))
		check("n1", 1)
		check("n2", 0)
		r.check()
	})
}
