package server

import (
	"strings"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/state"
)

const (
	// maxTransitionReasons bounds the reasons that are counted separately, because each is a series in
	// Prometheus. Later ones are counted as otherReason.
	maxTransitionReasons = 60
	otherReason          = "another"
	// maxTransitionReason bounds the length of a reason, in bytes.
	maxTransitionReason = 80
)

// transitions counts the transitions of the conditions of nodes (stage, health, intent), by new
// value and reason.
type transitions struct {
	counter *prometheus.CounterVec
	// former is the same under the name that the metric had before, for dashboards that still use
	// it. The release after the one that renames it drops it.
	former  *prometheus.CounterVec
	reasons map[string]bool // only the follower of the feed uses it
}

func newTransitions() *transitions {
	return &transitions{
		reasons: map[string]bool{},
		counter: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_node_transitions_total",
			Help: "Transitions of a condition of nodes (stage, health, intent), by new value and reason; the reason has no names, numbers or texts of operators.",
		}, []string{"condition", "to", "reason"}),
		former: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "muster_node_turns_total",
			Help: "Deprecated: the former name of muster_node_transitions_total.",
		}, []string{"dial", "to", "reason"}),
	}
}

// node counts how a node changed; before is nil for a new one. A new node has a transition of its
// stage only.
func (t *transitions) node(before, n *state.Node) {
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

func (t *transitions) count(condition, to, reason string) {
	reason = kindOfReason(reason)
	if !t.reasons[reason] {
		if len(t.reasons) >= maxTransitionReasons {
			reason = otherReason
		}
		t.reasons[reason] = true
	}
	t.counter.WithLabelValues(condition, to, reason).Inc()
	t.former.WithLabelValues(condition, to, reason).Inc()
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
	if len(reason) > maxTransitionReason {
		reason = strings.ToValidUTF8(reason[:maxTransitionReason], "")
	}
	return reason
}
