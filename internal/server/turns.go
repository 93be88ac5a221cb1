package server

import (
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/state"
)

const (
	// maxTurnReasons bounds the reasons that are counted separately, because each is a series in
	// Prometheus. Later ones are counted as otherReason.
	maxTurnReasons = 60
	otherReason    = "another"
	// maxTurnWords bounds the length of a reason, in bytes.
	maxTurnWords = 80
)

// turns counts the transitions of the conditions of nodes (stage, health, intent), by new value and
// reason.
type turns struct {
	counter *prometheus.CounterVec
	reasons map[string]bool // only the follower of the feed uses it
}

func newTurns() *turns {
	return &turns{reasons: map[string]bool{}, counter: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "muster_node_turns_total",
		Help: "How often a dial of a node (stage, health, intent) was turned, to what and why; names and numbers are left out of the reason, and what an operator says.",
	}, []string{"dial", "to", "reason"})}
}

// node counts how a node changed; before is nil for a new one. A new node has a transition of its
// stage only.
func (t *turns) node(before, n *state.Node) {
	was := state.Node{Health: n.Health, Intent: n.Intent}
	if before != nil {
		was = *before
	}
	if was.Stage != n.Stage {
		reason := n.StageReason
		if n.StageWho != "" {
			reason = "by an operator"
		}
		t.count("stage", string(n.Stage), reason)
	}
	if was.Health != n.Health {
		t.count("health", string(n.Health), n.HealthReason)
	}
	if was.Intent != n.Intent {
		// The words of operators are left out: they may say anything, and each text would be a
		// series.
		reason := "by an operator"
		if before == nil || n.IntentWho == "" {
			reason = "by itself"
		}
		t.count("intent", string(n.Intent), reason)
	}
}

func (t *turns) count(dial, to, reason string) {
	reason = kindOfReason(reason)
	if !t.reasons[reason] {
		if len(t.reasons) >= maxTurnReasons {
			reason = otherReason
		}
		t.reasons[reason] = true
	}
	t.counter.WithLabelValues(dial, to, reason).Inc()
}

// kindOfReason is the beginning of a reason, without what differs from case to case. Names that a
// file or a command gave come after a colon, and all numbers become one sign.
func kindOfReason(reason string) string {
	if i := strings.IndexAny(reason, ":,(;"); i >= 0 {
		reason = reason[:i]
	}
	var words []string
	for _, w := range strings.Fields(reason) {
		if strings.ContainsFunc(w, unicode.IsDigit) {
			w = "…"
		}
		words = append(words, w)
	}
	reason = strings.Join(words, " ")
	if len(reason) > maxTurnWords {
		reason = strings.ToValidUTF8(reason[:maxTurnWords], "")
	}
	return reason
}
