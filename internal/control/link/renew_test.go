package link

import (
	"context"
	"sync"
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
		// While servers of two builds take turns, each leaves the agents of the other one.
		r.config.KeepAgents = func() bool { return true }
		r.restart()
		r.submit("k", spec("sleep 1s"))
		r.place("k", "n1")
		r.until("the second job has ended", time.Minute, jobEnded("k"))
		check("n1", 1)
		check("n2", 0)
		r.check()
	})
}

// hooked is a state that calls a function at a look that its owner asks for.
type hooked struct {
	Source
	mu   sync.Mutex
	next func()
}

func (h *hooked) Latest() *state.Snapshot {
	h.mu.Lock()
	next := h.next
	h.next = nil
	h.mu.Unlock()
	if next != nil {
		next()
	}
	return h.Source.Latest()
}

// The agent that said hello may be replaced before it reports: what the state
// knows of the node is then of the one that runs.
func TestReplacedBetweenHelloAndReports(t *testing.T) {
	inBubble(t, func(r *rig) {
		n := r.boot("n1", 4)
		r.start()
		r.until("n1 serves", time.Minute, serving("n1"))
		time.Sleep(time.Second)
		r.stop()
		source := &hooked{Source: r.config.State}
		r.config.State = source
		// Once: others look at the state too, and who finds no agent between its end and its start has it started again.
		var once sync.Once
		r.config.StartAgent = func(context.Context, *state.Node) error {
			once.Do(func() {
				source.mu.Lock()
				defer source.mu.Unlock()
				// Looked at once more before the reports are asked for: whether the node has to join.
				source.next = func() {
					n.Kill()
					if err := n.Start(); err != nil {
						t.Error(err)
					}
				}
			})
			return nil
		}
		if err := r.log.Lead(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.until("the new agent is known", time.Minute, func(s *state.Snapshot) bool { return s.Node("n1").Boot == "n1-boot2" })
		r.until("n1 serves", time.Minute, serving("n1"))
	})
}
